// config.json in and out.
#include <optional>
#include <string_view>

#include "checkpoint/json.h"
#include "checkpoint/model_config_check.h"
#include "core/check.h"
#include "strata/model_config.h"

namespace strata {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// Typed access to one JSON object. null counts as absent, as it does in the published configs.
class Fields {
 public:
  Fields(const json& object, std::string origin, std::string prefix = {})
      : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

  [[noreturn]] void reject(std::string_view key, std::string_view expected, std::string_view actual) const {
    fail(ErrorCode::invalid_file, "{}: {}{}: expected {}, is {}", origin_, prefix_, key, expected, actual);
  }

  const json* get(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  const json& need(const char* key, std::string_view expected) const {
    const json* value = get(key);
    if (value == nullptr) reject(key, expected, object_.contains(key) ? "null" : "missing");
    return *value;
  }

  int64_t integer(const char* key) const { return to_integer(key, need(key, "an integer")); }
  int64_t integer(const char* key, int64_t otherwise) const {
    const json* value = get(key);
    return value ? to_integer(key, *value) : otherwise;
  }
  double number(const char* key) const { return to_number(key, need(key, "a number")); }
  double number(const char* key, double otherwise) const {
    const json* value = get(key);
    return value ? to_number(key, *value) : otherwise;
  }
  std::optional<std::string> text(const char* key) const {
    const json* value = get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) reject(key, "a string", brief(*value));
    return value->get<std::string>();
  }
  bool flag(const char* key, bool otherwise) const {
    const json* value = get(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) reject(key, "true or false", brief(*value));
    return value->get<bool>();
  }
  // True or absent, false or absent: switches of which we know one position only.
  void only(const char* key, bool expected) const {
    const json* value = get(key);
    if (value != nullptr && *value != json(expected)) reject(key, expected ? "true" : "false", brief(*value));
  }
  std::optional<Fields> object(const char* key) const {
    const json* value = get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_object()) reject(key, "an object", brief(*value));
    return Fields(*value, origin_, prefix_ + key + ".");
  }
  int64_t to_integer(std::string_view key, const json& value) const {
    if (!value.is_number_integer()) reject(key, "an integer", brief(value));
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) reject(key, "an integer", brief(value));
    return value.get<int64_t>();
  }

 private:
  double to_number(std::string_view key, const json& value) const {
    if (!value.is_number()) reject(key, "a number", brief(value));
    return value.get<double>();
  }

  const json& object_;
  std::string origin_;
  std::string prefix_;
};

std::string first_architecture(const Fields& f) {
  const json* list = f.get("architectures");
  if (list == nullptr) return {};
  if (!list->is_array() || list->empty() || !list->front().is_string()) {
    f.reject("architectures", "an array whose first entry is a string", brief(*list));
  }
  return list->front().get<std::string>();
}

ModelFamily find_family(const ModelConfig& c, const Fields& f) {
  if (c.architecture.starts_with("DeepseekV4") || c.model_type.starts_with("deepseek_v4")) return ModelFamily::deepseek_v4;
  // Multi-head latent attention has many names (DeepSeek V2, V3, V3.2, Kimi K2, ...) and one key that nothing else has.
  if (f.get("kv_lora_rank") != nullptr) return ModelFamily::deepseek_mla;
  f.reject("model_type", "\"deepseek_v4\", or kv_lora_rank to be given",
           fmt::format("{} (architecture {})", brief(json(c.model_type)), brief(json(c.architecture))));
}

void read_rope(ModelConfig& c, const Fields& f) {
  c.rope_theta = f.number("rope_theta");
  const auto scaling = f.object("rope_scaling");
  if (!scaling) return;
  const auto old_key = scaling->text("type");
  const auto new_key = scaling->text("rope_type");
  if (old_key && new_key && *old_key != *new_key) {
    scaling->reject("rope_type", fmt::format("the same as type, {}", brief(json(*old_key))), brief(json(*new_key)));
  }
  const auto type = new_key ? new_key : old_key;
  if (!type) scaling->reject("type", "\"yarn\" or \"default\"", "missing");
  if (*type == "default") return;
  if (*type != "yarn" && *type != "deepseek_yarn") scaling->reject("type", "\"yarn\" or \"default\"", brief(json(*type)));
  scaling->only("apply_yarn_scaling", true);
  c.has_yarn = true;
  c.rope_factor = scaling->number("factor");
  c.rope_original_max_position = scaling->integer("original_max_position_embeddings");
  c.rope_beta_fast = scaling->number("beta_fast", c.rope_beta_fast);
  c.rope_beta_slow = scaling->number("beta_slow", c.rope_beta_slow);
  if (c.family == ModelFamily::deepseek_v4) return;  // V4 has no magnitude correction
  c.rope_mscale = scaling->number("mscale", c.rope_mscale);
  c.rope_mscale_all_dim = scaling->number("mscale_all_dim", c.rope_mscale_all_dim);
  c.rope_attn_factor = scaling->number("attn_factor", c.rope_attn_factor);
}

void read_quantization(ModelConfig& c, const Fields& f) {
  const auto q = f.object("quantization_config");
  if (!q) return;
  const auto expect = [&](const char* key, std::string_view expected, bool required) {
    const auto text = q->text(key);
    if (!text && !required) return;
    if (!text || *text != expected) q->reject(key, fmt::format("\"{}\"", expected), text ? brief(json(*text)) : "missing");
  };
  expect("quant_method", "fp8", true);
  expect("fmt", "e4m3", false);
  expect("activation_scheme", "dynamic", false);
  c.fp8_weights = true;
  if (const auto format = q->text("scale_fmt"); format && *format != "float") {
    if (*format != "ue8m0") q->reject("scale_fmt", "\"ue8m0\", \"float\" or null", brief(json(*format)));
    c.scale_ue8m0 = true;
  }
  if (const json* block = q->get("weight_block_size"); block != nullptr) {
    if (!block->is_array() || block->size() != 2) q->reject("weight_block_size", "two integers", brief(*block));
    for (size_t i = 0; i < 2; ++i) c.weight_block_size[i] = q->to_integer("weight_block_size", (*block)[i]);
  }
}

void read_v4(ModelConfig& c, const Fields& f) {
  c.q_lora_rank = f.integer("q_lora_rank");
  c.head_dim = f.integer("head_dim");
  if (const int64_t kv_heads = f.integer("num_key_value_heads", 1); kv_heads != 1) {
    f.reject("num_key_value_heads", "1", fmt::format("{}", kv_heads));
  }
  c.o_groups = f.integer("o_groups");
  c.o_lora_rank = f.integer("o_lora_rank");
  c.sliding_window = f.integer("sliding_window");
  const json& ratios = f.need("compress_ratios", "an array of integers");
  if (!ratios.is_array()) f.reject("compress_ratios", "an array of integers", brief(ratios));
  bool compressed = false;
  bool indexed = false;
  for (size_t i = 0; i < ratios.size(); ++i) {
    const std::string key = fmt::format("compress_ratios[{}]", i);
    const int64_t ratio = f.to_integer(key, ratios[i]);
    if (ratio != static_cast<int32_t>(ratio)) f.reject(key, "0, 4 or 128", fmt::format("{}", ratio));
    c.compress_ratios.push_back(static_cast<int32_t>(ratio));
    compressed = compressed || ratio != 0;
    indexed = indexed || ratio == 4;
  }
  c.compress_rope_theta = compressed ? f.number("compress_rope_theta") : f.number("compress_rope_theta", 0.0);
  if (indexed || f.get("index_topk") != nullptr) {
    c.index_n_heads = f.integer("index_n_heads");
    c.index_head_dim = f.integer("index_head_dim");
    c.index_topk = f.integer("index_topk");
  }
}

void read_mla(ModelConfig& c, const Fields& f) {
  c.q_lora_rank = f.integer("q_lora_rank", 0);
  c.kv_lora_rank = f.integer("kv_lora_rank");
  c.qk_nope_head_dim = f.integer("qk_nope_head_dim");
  c.v_head_dim = f.integer("v_head_dim");
  if (f.get("index_topk") == nullptr) return;
  c.index_topk = f.integer("index_topk");
  if (c.index_topk == 0) f.reject("index_topk", "a positive integer, or no such key", "0");
  c.index_n_heads = f.integer("index_n_heads");
  c.index_head_dim = f.integer("index_head_dim");
  c.index_topk_pattern = f.text("index_topk_pattern").value_or("");
  c.index_topk_freq = f.integer("index_topk_freq", c.index_topk_freq);
  c.index_skip_topk_offset = f.integer("index_skip_topk_offset", c.index_skip_topk_offset);
  c.indexer_rope_interleave = f.flag("indexer_rope_interleave", false);
}

using ordered = nlohmann::ordered_json;

void write_rope(const ModelConfig& c, ordered& j) {
  j["rope_theta"] = c.rope_theta;
  if (!c.has_yarn) {
    j["rope_scaling"] = nullptr;
    return;
  }
  ordered& s = j["rope_scaling"];
  s["type"] = "yarn";
  s["factor"] = c.rope_factor;
  s["original_max_position_embeddings"] = c.rope_original_max_position;
  s["beta_fast"] = c.rope_beta_fast;
  s["beta_slow"] = c.rope_beta_slow;
  if (c.family == ModelFamily::deepseek_v4) return;
  s["mscale"] = c.rope_mscale;
  s["mscale_all_dim"] = c.rope_mscale_all_dim;
  if (c.rope_attn_factor != 1.0) s["attn_factor"] = c.rope_attn_factor;
}

void write_indexer(const ModelConfig& c, ordered& j) {
  if (c.index_topk == 0) return;
  j["index_n_heads"] = c.index_n_heads;
  j["index_head_dim"] = c.index_head_dim;
  j["index_topk"] = c.index_topk;
  if (c.family == ModelFamily::deepseek_v4) return;
  if (!c.index_topk_pattern.empty()) j["index_topk_pattern"] = c.index_topk_pattern;
  if (c.index_topk_freq != 1) j["index_topk_freq"] = c.index_topk_freq;
  if (c.index_skip_topk_offset != 2) j["index_skip_topk_offset"] = c.index_skip_topk_offset;
  if (c.indexer_rope_interleave) j["indexer_rope_interleave"] = true;
}

}  // namespace

ModelConfig ModelConfig::parse(const std::string& json_text, const std::string& origin) {
  const json root = parse_json(json_text, origin);
  if (!root.is_object()) fail(ErrorCode::invalid_file, "{}: expected an object, is {}", origin, brief(root));
  const Fields f(root, origin);
  ModelConfig c;
  c.architecture = first_architecture(f);
  c.model_type = f.text("model_type").value_or("");
  c.family = find_family(c, f);
  c.hidden_size = f.integer("hidden_size");
  c.num_hidden_layers = f.integer("num_hidden_layers");
  c.num_nextn_predict_layers = f.integer("num_nextn_predict_layers", 0);
  c.num_attention_heads = f.integer("num_attention_heads");
  c.max_position_embeddings = f.integer("max_position_embeddings");
  c.rms_norm_eps = f.number("rms_norm_eps");
  c.qk_rope_head_dim = f.integer("qk_rope_head_dim");
  f.only("attention_bias", false);
  read_rope(c, f);
  read_quantization(c, f);
  if (c.family == ModelFamily::deepseek_v4) {
    read_v4(c, f);
  } else {
    read_mla(c, f);
  }
  check_model_config(c, origin);
  return c;
}

ModelConfig ModelConfig::load(const std::filesystem::path& file_or_directory) {
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(file_or_directory, ignored);
  const std::string path = (directory ? file_or_directory / "config.json" : file_or_directory).string();
  return parse(read_text_file(path, kMaxConfigBytes), path);
}

std::string ModelConfig::to_json() const {
  ordered j;
  if (!architecture.empty()) j["architectures"] = {architecture};
  if (!model_type.empty()) j["model_type"] = model_type;
  j["hidden_size"] = hidden_size;
  j["num_hidden_layers"] = num_hidden_layers;
  j["num_nextn_predict_layers"] = num_nextn_predict_layers;
  j["num_attention_heads"] = num_attention_heads;
  j["qk_rope_head_dim"] = qk_rope_head_dim;
  // 0 is null: what the published configs say of a model without a query latent.
  j["q_lora_rank"] = q_lora_rank == 0 ? ordered(nullptr) : ordered(q_lora_rank);
  if (family == ModelFamily::deepseek_v4) {
    j["num_key_value_heads"] = 1;
    j["head_dim"] = head_dim;
    j["o_groups"] = o_groups;
    j["o_lora_rank"] = o_lora_rank;
    j["sliding_window"] = sliding_window;
    j["compress_ratios"] = compress_ratios;
    j["compress_rope_theta"] = compress_rope_theta;
  } else {
    j["num_key_value_heads"] = num_attention_heads;
    j["kv_lora_rank"] = kv_lora_rank;
    j["qk_nope_head_dim"] = qk_nope_head_dim;
    j["v_head_dim"] = v_head_dim;
  }
  write_rope(*this, j);
  j["max_position_embeddings"] = max_position_embeddings;
  write_indexer(*this, j);
  j["rms_norm_eps"] = rms_norm_eps;
  j["torch_dtype"] = "bfloat16";
  if (fp8_weights) {
    ordered& q = j["quantization_config"];
    q["activation_scheme"] = "dynamic";
    q["fmt"] = "e4m3";
    q["quant_method"] = "fp8";
    if (scale_ue8m0) q["scale_fmt"] = "ue8m0";
    q["weight_block_size"] = weight_block_size;
  }
  // Names come from callers and need not be UTF-8; what is not is replaced, so that writing never throws.
  return j.dump(2, ' ', false, ordered::error_handler_t::replace) + "\n";
}

}  // namespace strata
