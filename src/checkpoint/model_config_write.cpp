// config.json out.
#include <nlohmann/json.hpp>

#include "strata/model_config.h"

namespace strata {
namespace {

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
  if (!c.rope_truncate) s["truncate"] = false;
  if (c.family == ModelFamily::deepseek_v4) return;
  s["mscale"] = c.rope_mscale;
  s["mscale_all_dim"] = c.rope_mscale_all_dim;
  if (c.rope_attn_factor != 1.0) s["attn_factor"] = c.rope_attn_factor;
  if (c.rope_attention_factor) s["attention_factor"] = *c.rope_attention_factor;
}

void write_indexer(const ModelConfig& c, ordered& j) {
  if (c.index_topk == 0) return;
  j["index_n_heads"] = c.index_n_heads;
  j["index_head_dim"] = c.index_head_dim;
  j["index_topk"] = c.index_topk;
  if (c.family == ModelFamily::deepseek_v4) return;
  if (!c.index_topk_pattern.empty()) {
    j["index_topk_pattern"] = c.index_topk_pattern;  // decides alone
  } else if (c.index_topk_freq != 1 || c.index_skip_topk_offset != 2) {
    j["index_topk_freq"] = c.index_topk_freq;
    j["index_skip_topk_offset"] = c.index_skip_topk_offset;
  }
  j["indexer_rope_interleave"] = c.indexer_rope_interleave;
}

}  // namespace

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
  } else if (!other_quant_method.empty()) {
    j["quantization_config"]["quant_method"] = other_quant_method;
    j["quantization_config"]["modules_to_not_convert"] = {"self_attn"};
  }
  // Names come from callers and need not be UTF-8; what is not is replaced, so that writing never throws.
  return j.dump(2, ' ', false, ordered::error_handler_t::replace) + "\n";
}

}  // namespace strata
