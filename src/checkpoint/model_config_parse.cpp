// config.json in.
#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "checkpoint/config_fields.h"
#include "checkpoint/config_indexer.h"
#include "checkpoint/config_names.h"
#include "checkpoint/config_nested.h"
#include "checkpoint/config_quantization.h"
#include "checkpoint/config_rope.h"
#include "checkpoint/file_names.h"
#include "checkpoint/json.h"
#include "checkpoint/model_config_check.h"
#include "core/check.h"

namespace strata {
namespace {

using nlohmann::json;

// Quantisers list every matrix that they leave alone: some megabytes.
constexpr size_t kMaxConfigBytes = size_t{64} << 20;

int64_t read_mtp_layers(const ConfigFields& f) {
  const auto official = f.optional_integer("num_nextn_predict_layers"), other = f.optional_integer("num_mtp_layers");
  if (official && other && *official != *other) {
    f.reject("num_mtp_layers", fmt::format("the same as num_nextn_predict_layers, {}", *official), fmt::format("{}", *other));
  }
  return official ? *official : other.value_or(0);
}

std::optional<std::vector<int32_t>> read_compress_ratios(const ConfigFields& f) {
  const json* ratios = f.get("compress_ratios");
  if (ratios == nullptr) return std::nullopt;
  if (!ratios->is_array()) f.reject("compress_ratios", "an array of integers", brief(*ratios));
  std::vector<int32_t> result;
  for (size_t i = 0; i < ratios->size(); ++i) {
    const std::string key = fmt::format("compress_ratios[{}]", i);
    const int64_t ratio = f.to_integer(key, (*ratios)[i]);
    if (ratio != 0 && ratio != 4 && ratio != 128) f.reject(key, "0, 4 or 128", fmt::format("{}", ratio));
    result.push_back(static_cast<int32_t>(ratio));
  }
  return result;
}

// The rates go with the kinds of layer: 4 with an indexer and overlapping entries, 128 without.
void check_compress_rates(const ConfigFields& f) {
  const auto check = [&](const std::string& key, const json& value, int64_t expected) {
    if (value.is_null()) return;
    if (const int64_t rate = f.to_integer(key, value); rate != expected)
      f.reject(key, fmt::format("{}", expected), fmt::format("{}", rate));
  };
  const std::map<std::string, int64_t> rates{{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  for (const auto& [key, rate] : {std::pair("compress_rate_csa", 4), std::pair("compress_rate_hca", 128)}) {
    if (const json* value = f.get(key)) check(key, *value, rate);
  }
  const json* object = f.get("compress_rates");
  if (object == nullptr) return;
  if (!object->is_object()) f.reject("compress_rates", "an object", brief(*object));
  for (const auto& [kind, value] : object->items()) {
    const auto known = rates.find(kind);
    if (known == rates.end()) f.reject("compress_rates", "the keys compressed_sparse_attention and heavily_compressed_attention", kind);
    check("compress_rates." + kind, value, known->second);
  }
}

std::optional<std::vector<int32_t>> read_layer_types_v4(const ConfigFields& f) {
  const std::map<std::string, int32_t> ratios{
      {"sliding_attention", 0}, {"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  const auto types = f.texts("layer_types");
  if (!types) return std::nullopt;
  std::vector<int32_t> result;
  for (size_t i = 0; i < types->size(); ++i) {
    const auto it = ratios.find((*types)[i]);
    if (it == ratios.end()) {
      f.reject(fmt::format("layer_types[{}]", i), "sliding_attention, compressed_sparse_attention or heavily_compressed_attention",
               brief(json((*types)[i])));
    }
    result.push_back(it->second);
  }
  return result;
}

// An entry for each layer; MTP layers may have one too.
void check_layer_count(const ModelConfig& c, const ConfigFields& f, size_t entries) {
  const int64_t layers = c.num_hidden_layers, count = static_cast<int64_t>(entries);
  if (layers < 0) return;  // refused as such
  if (count >= layers && count - layers <= std::max<int64_t>(c.num_nextn_predict_layers, 0)) return;
  f.reject("layer_types",
           fmt::format("an entry for each of num_hidden_layers = {} and none or one for each of {} MTP layers", layers,
                       c.num_nextn_predict_layers),
           fmt::format("{} entries", count));
}

void read_layer_kinds(ModelConfig& c, const ConfigFields& f) {
  check_compress_rates(f);
  auto ratios = read_compress_ratios(f);
  const auto types = read_layer_types_v4(f);
  if (types) check_layer_count(c, f, types->size());
  for (size_t i = 0; types && ratios && i < std::min(types->size(), ratios->size()); ++i) {
    if ((*types)[i] == (*ratios)[i]) continue;
    f.reject(fmt::format("layer_types[{}]", i), fmt::format("the kind of compress_ratios[{}] = {}", i, (*ratios)[i]),
             fmt::format("that of {}", (*types)[i]));
  }
  if (!ratios) ratios = types;
  if (!ratios) f.need("compress_ratios", "an array of integers, or layer_types");
  c.compress_ratios = *std::move(ratios);
}

void read_v4(ModelConfig& c, const ConfigFields& f) {
  c.q_lora_rank = f.integer("q_lora_rank");
  c.o_groups = f.integer("o_groups");
  c.o_lora_rank = f.integer("o_lora_rank");
  c.sliding_window = f.integer("sliding_window");
  read_layer_kinds(c, f);
  const bool compressed = std::any_of(c.compress_ratios.begin(), c.compress_ratios.end(), [](int32_t ratio) { return ratio != 0; });
  const bool indexed = std::count(c.compress_ratios.begin(), c.compress_ratios.end(), 4) > 0;
  if (compressed && c.compress_rope_theta == 0.0) f.number("compress_rope_theta");
  if (indexed) f.integer("index_topk");
  read_indexer(c, f);
}

// Every layer attends in the one way that the model has.
void check_layer_types_mla(const ModelConfig& c, const ConfigFields& f) {
  const auto types = f.texts("layer_types");
  if (!types) return;
  check_layer_count(c, f, types->size());
  for (size_t i = 0; i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    const bool indexed = type == "indexed_attention" || type == "deepseek_sparse_attention";
    if (c.index_topk > 0 ? indexed : type == "full_attention") continue;
    f.reject(fmt::format("layer_types[{}]", i),
             c.index_topk > 0 ? "indexed_attention or deepseek_sparse_attention, as index_topk is given" : "full_attention",
             brief(json(type)));
  }
}

void read_mla(ModelConfig& c, const ConfigFields& f) {
  c.q_lora_rank = f.integer("q_lora_rank", 0);
  c.kv_lora_rank = f.integer("kv_lora_rank");
  c.qk_nope_head_dim = f.integer("qk_nope_head_dim");
  c.v_head_dim = f.integer("v_head_dim");
  if (const auto head = f.optional_integer("qk_head_dim"); head && *head - c.qk_rope_head_dim != c.qk_nope_head_dim) {
    f.reject("qk_head_dim", fmt::format("qk_nope_head_dim {} + qk_rope_head_dim {}", c.qk_nope_head_dim, c.qk_rope_head_dim),
             fmt::format("{}", *head));
  }
  // Libraries that repeat keys by num_attention_heads / num_key_value_heads would repeat those of the latent.
  if (const auto heads = f.optional_integer("num_key_value_heads"); heads && *heads != c.num_attention_heads) {
    f.reject("num_key_value_heads", fmt::format("num_attention_heads, {}, as every head has keys of its own", c.num_attention_heads),
             fmt::format("{}", *heads));
  }
  read_indexer(c, f);
  check_layer_types_mla(c, f);
}

}  // namespace

ModelConfig ModelConfig::parse(const std::string& json_text, const std::string& origin, const ConfigOptions& options) {
  const json root = parse_json(json_text, origin);
  if (!root.is_object()) fail(ErrorCode::invalid_file, "{}: expected an object, is {}", origin, brief(root));
  const NestedModel nested(root, origin);
  const ConfigFields& f = nested.fields();
  ModelConfig c;
  read_names(c, f, options);
  std::vector<std::string>& unknown = c.unknown_.keys;
  check_config_keys(f.object(), KeyScope::model, c.family, origin, f.prefix(), options.accept_keys, unknown);
  nested.check_outer(c, options.accept_keys, unknown);
  c.hidden_size = f.integer("hidden_size");
  c.num_hidden_layers = f.integer("num_hidden_layers");
  c.num_nextn_predict_layers = read_mtp_layers(f);
  c.num_attention_heads = f.integer("num_attention_heads");
  c.max_position_embeddings = f.integer("max_position_embeddings");
  c.rms_norm_eps = f.number("rms_norm_eps");
  if (c.family == ModelFamily::deepseek_v4) c.head_dim = f.integer("head_dim");
  read_rope(c, f, options.accept_keys, unknown);
  if (c.family == ModelFamily::deepseek_v4) {
    read_v4(c, f);
  } else {
    read_mla(c, f);
  }
  const auto q = nested.quantization();
  if (q) read_quantization(c, *q, options.accept_keys, unknown);
  check_model_config(c, origin);
  std::sort(unknown.begin(), unknown.end());
  return c;
}

ModelConfig ModelConfig::load(const std::filesystem::path& file_or_directory, const ConfigOptions& options) {
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(file_or_directory, ignored);
  const std::string path = (directory ? file_or_directory / kConfigFile : file_or_directory).string();
  return parse(read_text_file(path, kMaxConfigBytes), path, options);
}

}  // namespace strata
