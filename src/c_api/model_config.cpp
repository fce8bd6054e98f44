#include "c_api/model_config.h"

#include "c_api/arrays.h"
#include "c_api/convert.h"
#include "c_api/objects.h"
#include "layers/forward_check.h"

namespace strata::c_api {

STRATA_STRUCT(strata_supported_model, 40);
STRATA_STRUCT(strata_config_options, 40);
STRATA_STRUCT(strata_model_info, 352);
STRATA_STRUCT(strata_rope_config, 72);

static_assert(STRATA_FAMILY_DEEPSEEK_V4 == static_cast<int32_t>(ModelFamily::deepseek_v4) &&
              STRATA_FAMILY_DEEPSEEK_MLA == static_cast<int32_t>(ModelFamily::deepseek_mla));

ConfigOptions to_config_options(const strata_config_options* options) {
  if (options == nullptr) return {};
  const strata_config_options o = read_struct(options, "options");
  return {.accept_keys = to_texts(o.accept_keys, o.num_accept_keys, "options.accept_keys"),
          .own_models = to_texts(o.own_models, o.num_own_models, "options.own_models")};
}

namespace {

// Names stay where they are: handed out as pointers.
const std::vector<std::string>& presets() {
  static const std::vector<std::string>& names = *new std::vector<std::string>(preset_names());
  return names;
}

strata_model_info info_of(const ModelConfig& c) {
  strata_model_info info = strata_model_info_default();
  info.architecture = c.architecture.c_str();
  info.model_type = c.model_type.c_str();
  info.family = static_cast<int32_t>(c.family);
  info.hidden_size = c.hidden_size;
  info.num_hidden_layers = c.num_hidden_layers;
  info.num_nextn_predict_layers = c.num_nextn_predict_layers;
  info.num_attention_heads = c.num_attention_heads;
  info.q_lora_rank = c.q_lora_rank;
  info.max_position_embeddings = c.max_position_embeddings;
  info.rms_norm_eps = c.rms_norm_eps;
  info.rope_theta = c.rope_theta;
  info.has_yarn = c.has_yarn;
  info.rope_factor = c.rope_factor;
  info.rope_original_max_position = c.rope_original_max_position;
  info.rope_beta_fast = c.rope_beta_fast;
  info.rope_beta_slow = c.rope_beta_slow;
  info.rope_mscale = c.rope_mscale;
  info.rope_mscale_all_dim = c.rope_mscale_all_dim;
  info.rope_attn_factor = c.rope_attn_factor;
  info.rope_attention_factor = c.rope_attention_factor ? &*c.rope_attention_factor : nullptr;
  info.rope_truncate = c.rope_truncate;
  info.head_dim = c.head_dim;
  info.qk_rope_head_dim = c.qk_rope_head_dim;
  info.o_groups = c.o_groups;
  info.o_lora_rank = c.o_lora_rank;
  info.sliding_window = c.sliding_window;
  info.compress_rope_theta = c.compress_rope_theta;
  info.compress_ratios = c.compress_ratios.empty() ? nullptr : c.compress_ratios.data();
  info.num_compress_ratios = std::ssize(c.compress_ratios);
  info.index_n_heads = c.index_n_heads;
  info.index_head_dim = c.index_head_dim;
  info.index_topk = c.index_topk;
  info.index_topk_pattern = c.index_topk_pattern.c_str();
  info.index_topk_freq = c.index_topk_freq;
  info.index_skip_topk_offset = c.index_skip_topk_offset;
  info.indexer_rope_interleave = c.indexer_rope_interleave;
  info.kv_lora_rank = c.kv_lora_rank;
  info.qk_nope_head_dim = c.qk_nope_head_dim;
  info.v_head_dim = c.v_head_dim;
  info.fp8_weights = c.fp8_weights;
  info.scale_ue8m0 = c.scale_ue8m0;
  std::copy(c.weight_block_size.begin(), c.weight_block_size.end(), info.weight_block_size);
  info.other_quant_method = c.other_quant_method.c_str();
  return info;
}

strata_model_config make(ModelConfig config) { return make_handle<strata_model_config>(std::make_shared<ModelConfig>(std::move(config))); }

}  // namespace
}  // namespace strata::c_api

using namespace strata;
using namespace strata::c_api;

int64_t strata_num_supported_models(void) noexcept { return std::ssize(supported_models()); }

strata_status strata_supported_model_get(int64_t index, strata_supported_model* model) noexcept {
  return guarded([&] {
    const StructResult out(model, "model");
    const auto models = supported_models();
    require(index >= 0 && index < std::ssize(models), "index: expected 0 to {}, is {}", std::ssize(models) - 1, index);
    const SupportedModel& known = models[static_cast<size_t>(index)];
    strata_supported_model m = strata_supported_model_default();
    m.model_type = c_text(known.model_type);
    m.architecture = c_text(known.architecture);
    m.family = static_cast<int32_t>(known.family);
    m.releases = c_text(known.releases);
    out.write(m);
  });
}

strata_status strata_model_config_load(const char* path, const strata_config_options* options, strata_model_config* config) noexcept {
  return guarded([&] {
    strata_model_config& out = result(config, "config");
    out = make(ModelConfig::load(to_text(path, "path"), to_config_options(options)));
  });
}
strata_status strata_model_config_parse(const char* json, const char* origin, const strata_config_options* options,
                                        strata_model_config* config) noexcept {
  return guarded([&] {
    strata_model_config& out = result(config, "config");
    const std::string text(to_text(json, "json"));
    out = make(ModelConfig::parse(text, origin == nullptr ? "config.json" : origin, to_config_options(options)));
  });
}
strata_status strata_model_config_preset(const char* name, strata_model_config* config) noexcept {
  return guarded([&] {
    strata_model_config& out = result(config, "config");
    out = make(preset(std::string(to_text(name, "name"))));
  });
}
int64_t strata_num_presets(void) noexcept {
  int64_t count = 0;
  (void)guarded([&] { count = std::ssize(presets()); });
  return count;
}
strata_status strata_preset_name(int64_t index, const char** name) noexcept {
  return guarded([&] {
    const char*& out = result(name, "name");
    require(index >= 0 && index < std::ssize(presets()), "index: expected 0 to {}, is {}", std::ssize(presets()) - 1, index);
    out = presets()[static_cast<size_t>(index)].c_str();
  });
}
strata_status strata_model_config_destroy(strata_model_config config) noexcept { return destroy(config); }

strata_status strata_model_config_to_json(strata_model_config config, char* text, int64_t size, int64_t* needed) noexcept {
  return guarded([&] { write_text(find(config)->to_json(), text, size, needed); });
}
strata_status strata_model_config_get_info(strata_model_config config, strata_model_info* info) noexcept {
  return guarded([&] {
    const StructResult out(info, "info");
    out.write(info_of(*find(config)));
  });
}

strata_status strata_model_config_compress_ratio(strata_model_config config, int64_t layer, int32_t* ratio) noexcept {
  return guarded([&] {
    int32_t& out = result(ratio, "ratio");
    const auto of = find(config);
    check_layer_number(*of, layer);
    out = of->compress_ratio(layer);
  });
}
strata_status strata_model_config_rope(strata_model_config config, int64_t layer, strata_rope_config* rope) noexcept {
  return guarded([&] {
    const StructResult out(rope, "rope");
    const auto of = find(config);
    check_layer_number(*of, layer);
    const RopeConfig known = of->rope(layer);
    strata_rope_config r = strata_rope_config_default();
    r.dim = known.dim;
    r.theta = known.theta;
    r.factor = known.factor;
    r.original_max_position = known.original_max_position;
    r.beta_fast = known.beta_fast;
    r.beta_slow = known.beta_slow;
    r.truncate = known.truncate ? 1 : 0;
    r.mscale_gain = known.mscale_gain;
    out.write(r);
  });
}
strata_status strata_model_config_skip_topk(strata_model_config config, int64_t layer, int32_t* skip) noexcept {
  return guarded([&] {
    int32_t& out = result(skip, "skip");
    const auto of = find(config);
    check_layer_number(*of, layer);
    out = of->skip_topk(layer) ? 1 : 0;
  });
}
strata_status strata_model_config_softmax_scale(strata_model_config config, double* scale) noexcept {
  return guarded([&] {
    double& out = result(scale, "scale");
    const auto of = find(config);
    require(of->family == ModelFamily::deepseek_mla, "softmax_scale: expected a model of MLA, is {}", of->model_type);
    out = of->softmax_scale();
  });
}
strata_status strata_model_config_unknown_keys(strata_model_config config, const char** keys, int64_t capacity, int64_t* count) noexcept {
  return guarded([&] {
    const auto of = find(config);
    std::vector<const char*> texts;
    for (const std::string& key : of->unknown_keys()) texts.push_back(key.c_str());
    write_values(texts, keys, capacity, count, "keys");
  });
}
