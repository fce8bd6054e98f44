// Shapes of the published models: V4 specification 3, MLA specification 2.
#include "core/check.h"
#include "strata/model_config.h"

namespace strata {
namespace {

// `repeats` times (4, 128), between what a model begins and ends with.
std::vector<int32_t> alternating_ratios(std::vector<int32_t> begin, int repeats, const std::vector<int32_t>& end) {
  for (int i = 0; i < repeats; ++i) begin.insert(begin.end(), {4, 128});
  begin.insert(begin.end(), end.begin(), end.end());
  return begin;
}

void set_yarn(ModelConfig& c, double factor, int64_t original_max_position) {
  c.has_yarn = true;
  c.rope_factor = factor;
  c.rope_original_max_position = original_max_position;
}

void set_indexer(ModelConfig& c, int64_t heads, int64_t topk) {
  c.index_n_heads = heads;
  c.index_head_dim = 128;
  c.index_topk = topk;
}

ModelConfig v4() {
  ModelConfig c;
  c.architecture = "DeepseekV4ForCausalLM";
  c.model_type = "deepseek_v4";
  c.family = ModelFamily::deepseek_v4;
  c.max_position_embeddings = 1048576;
  c.sliding_window = 128;
  c.compress_rope_theta = 160000.0;
  set_yarn(c, 16.0, 65536);
  c.fp8_weights = true;
  c.scale_ue8m0 = true;
  return c;
}

ModelConfig v4_tiny() {
  ModelConfig c = v4();
  c.hidden_size = 512;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 8;
  c.q_lora_rank = 256;
  c.o_groups = 2;
  c.o_lora_rank = 256;
  c.compress_ratios = {0, 4, 128};
  set_indexer(c, 8, 64);
  return c;
}

ModelConfig v4_flash() {
  ModelConfig c = v4();
  c.hidden_size = 4096;
  c.num_hidden_layers = 43;
  c.num_nextn_predict_layers = 1;
  c.num_attention_heads = 64;
  c.q_lora_rank = 1024;
  c.o_groups = 8;
  c.o_lora_rank = 1024;
  c.compress_ratios = alternating_ratios({0, 0}, 20, {4, 0});
  set_indexer(c, 64, 512);
  return c;
}

ModelConfig v4_pro() {
  ModelConfig c = v4();
  c.hidden_size = 7168;
  c.num_hidden_layers = 61;
  c.num_nextn_predict_layers = 1;
  c.num_attention_heads = 128;
  c.q_lora_rank = 1536;
  c.o_groups = 16;
  c.o_lora_rank = 1024;
  c.compress_ratios = alternating_ratios({128, 128}, 29, {4, 0});
  set_indexer(c, 64, 1024);
  return c;
}

ModelConfig mla(const char* architecture, const char* model_type) {
  ModelConfig c;
  c.architecture = architecture;
  c.model_type = model_type;
  c.family = ModelFamily::deepseek_mla;
  c.max_position_embeddings = 163840;
  c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 128;
  c.v_head_dim = 128;
  set_yarn(c, 40.0, 4096);
  c.rope_mscale = 1.0;
  c.rope_mscale_all_dim = 1.0;
  return c;
}

ModelConfig v2_lite() {
  ModelConfig c = mla("DeepseekV2ForCausalLM", "deepseek_v2");
  c.hidden_size = 2048;
  c.num_hidden_layers = 27;
  c.num_attention_heads = 16;
  c.rope_mscale = 0.707;
  c.rope_mscale_all_dim = 0.707;
  return c;
}

ModelConfig v3() {
  ModelConfig c = mla("DeepseekV3ForCausalLM", "deepseek_v3");
  c.hidden_size = 7168;
  c.num_hidden_layers = 61;
  c.num_nextn_predict_layers = 1;
  c.num_attention_heads = 128;
  c.q_lora_rank = 1536;
  c.fp8_weights = true;
  return c;
}

ModelConfig v3_2() {
  ModelConfig c = v3();
  c.architecture = "DeepseekV32ForCausalLM";
  c.model_type = "deepseek_v32";
  c.scale_ue8m0 = true;
  set_indexer(c, 64, 2048);
  return c;
}

// The same structure, small enough for a demonstration and for tests.
ModelConfig tiny(ModelConfig c) {
  c.hidden_size = 512;
  c.num_hidden_layers = 2;
  c.num_nextn_predict_layers = 0;
  c.num_attention_heads = 8;
  if (c.q_lora_rank > 0) c.q_lora_rank = 256;
  return c;
}

ModelConfig v2_lite_tiny() { return tiny(v2_lite()); }
ModelConfig v3_tiny() { return tiny(v3()); }

// Layers 0, 1 and 3 select, layer 2 attends to what layer 1 selected.
ModelConfig v3_2_tiny() {
  ModelConfig c = tiny(v3_2());
  c.num_hidden_layers = 4;
  c.index_topk_freq = 2;
  set_indexer(c, 8, 64);
  return c;
}

struct Preset {
  const char* name;
  ModelConfig (*make)();
};
constexpr Preset kPresets[] = {
    {"v4-tiny", v4_tiny}, {"v4-flash", v4_flash},         {"v4-pro", v4_pro},   {"v2-lite", v2_lite},     {"v3", v3},
    {"v3.2", v3_2},       {"v2-lite-tiny", v2_lite_tiny}, {"v3-tiny", v3_tiny}, {"v3.2-tiny", v3_2_tiny},
};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& p : kPresets) names.emplace_back(p.name);
  return names;
}

ModelConfig preset(const std::string& name) {
  for (const Preset& p : kPresets) {
    if (name == p.name) return p.make();
  }
  fail(ErrorCode::invalid_argument, "preset: expected one of {}, is {}", fmt::join(preset_names(), ", "), name);
}

}  // namespace strata
