#include "checkpoint/config_keys.h"

#include <algorithm>
#include <array>
#include <string>

#include "checkpoint/json.h"
#include "core/check.h"

namespace strata {
namespace {

constexpr auto kModel = KeyScope::model;
constexpr auto kRope = KeyScope::rope;
constexpr auto kQuant = KeyScope::quantization;

constexpr ConfigKey honoured(KeyScope scope, std::string_view name) { return {scope, name, KeyEffect::honoured, true, true}; }
constexpr ConfigKey honoured_v4(KeyScope scope, std::string_view name) { return {scope, name, KeyEffect::honoured, true, false}; }
constexpr ConfigKey honoured_mla(KeyScope scope, std::string_view name) { return {scope, name, KeyEffect::honoured, false, true}; }
constexpr ConfigKey must_be(KeyScope scope, std::string_view name, std::string_view value) {
  return {scope, name, KeyEffect::must_be, true, true, value};
}
constexpr ConfigKey must_be_v4(KeyScope scope, std::string_view name, std::string_view value) {
  return {scope, name, KeyEffect::must_be, true, false, value};
}
constexpr ConfigKey harmless(KeyScope scope, std::string_view name) { return {scope, name, KeyEffect::no_effect, true, true}; }
constexpr ConfigKey harmless_mla(std::string_view name) { return {kModel, name, KeyEffect::no_effect, false, true}; }

// null counts as absent everywhere. A key may stand here once for V4 and once for MLA.
constexpr auto kKeys = std::to_array<ConfigKey>({
    honoured(kModel, "architectures"),
    honoured(kModel, "model_type"),
    honoured(kModel, "hidden_size"),
    honoured(kModel, "num_hidden_layers"),
    honoured(kModel, "num_nextn_predict_layers"),
    honoured(kModel, "num_mtp_layers"),  // transformers' name for num_nextn_predict_layers
    honoured(kModel, "num_attention_heads"),
    honoured(kModel, "max_position_embeddings"),
    honoured(kModel, "rms_norm_eps"),
    honoured(kModel, "q_lora_rank"),
    honoured(kModel, "qk_rope_head_dim"),
    honoured(kModel, "partial_rotary_factor"),
    honoured(kModel, "rope_theta"),
    honoured(kModel, "rope_scaling"),
    honoured(kModel, "rope_parameters"),
    honoured(kModel, "layer_types"),
    honoured(kModel, "index_topk"),
    honoured(kModel, "index_n_heads"),
    honoured(kModel, "index_head_dim"),
    honoured(kModel, "quantization_config"),
    honoured_v4(kModel, "head_dim"),
    honoured_v4(kModel, "o_groups"),
    honoured_v4(kModel, "o_lora_rank"),
    honoured_v4(kModel, "sliding_window"),
    honoured_v4(kModel, "compress_ratios"),
    honoured_v4(kModel, "compress_rates"),
    honoured_v4(kModel, "compress_rate_csa"),  // earlier spellings of compress_rates
    honoured_v4(kModel, "compress_rate_hca"),
    honoured_v4(kModel, "compress_rope_theta"),
    honoured_mla(kModel, "kv_lora_rank"),
    honoured_mla(kModel, "qk_nope_head_dim"),
    honoured_mla(kModel, "qk_head_dim"),
    honoured_mla(kModel, "v_head_dim"),
    honoured_mla(kModel, "index_topk_pattern"),
    honoured_mla(kModel, "index_topk_freq"),
    honoured_mla(kModel, "index_skip_topk_offset"),
    honoured_mla(kModel, "indexer_types"),
    honoured_mla(kModel, "indexer_rope_interleave"),

    must_be(kModel, "attention_bias", "false"),
    must_be(kModel, "rope_interleave", "true"),  // pairs (2i, 2i + 1)
    must_be(kModel, "use_mla", "true"),
    must_be(kModel, "mla_use_nope", "false"),
    must_be(kModel, "use_sliding_window", "false"),
    must_be(kModel, "add_cross_attention", "false"),
    must_be(kModel, "pruned_heads", "{}"),
    must_be_v4(kModel, "num_key_value_heads", "1"),

    // Names that suggest attention, and do not change what a layer computes.
    harmless(kModel, "attention_dropout"),  // of training
    harmless(kModel, "attention_probs_dropout_prob"),
    harmless(kModel, "_attn_implementation*"),  // which kernel another library takes
    harmless(kModel, "attn_implementation"),
    harmless(kModel, "output_attentions"),
    harmless(kModel, "index_share_for_mtp_iteration"),  // ForwardArgs::skip_topk, which the engine decides at each step
    harmless_mla("num_key_value_heads"),                // the keys of all heads come from one latent
    harmless_mla("head_dim"),                           // 64, 192 or 576 by author: qk_nope_head_dim and qk_rope_head_dim are meant

    // The rest of the model.
    harmless(kModel, "_name_or_path"),
    harmless(kModel, "_commit_hash"),
    harmless(kModel, "auto_map"),
    harmless(kModel, "aux_loss_alpha"),
    harmless(kModel, "bad_words_ids"),
    harmless(kModel, "begin_suppress_tokens"),
    harmless(kModel, "bos_token_id"),
    harmless(kModel, "chunk_size_feed_forward"),
    harmless(kModel, "decoder_start_token_id"),
    harmless(kModel, "diversity_penalty"),
    harmless(kModel, "do_sample"),
    harmless(kModel, "dtype"),
    harmless(kModel, "early_stopping"),
    harmless(kModel, "embedding_initializer_range"),
    harmless(kModel, "encoder_no_repeat_ngram_size"),
    harmless(kModel, "eos_token_id"),
    harmless(kModel, "ep_size"),
    harmless(kModel, "expert_dtype"),
    harmless(kModel, "exponential_decay_length_penalty"),
    harmless(kModel, "finetuning_task"),
    harmless(kModel, "first_k_dense_replace"),
    harmless(kModel, "forced_bos_token_id"),
    harmless(kModel, "forced_eos_token_id"),
    harmless(kModel, "hc_*"),  // V4's hyper-connections
    harmless(kModel, "hidden_act"),
    harmless(kModel, "id2label"),
    harmless(kModel, "initializer_range"),
    harmless(kModel, "intermediate_size"),
    harmless(kModel, "is_decoder"),
    harmless(kModel, "is_encoder_decoder"),
    harmless(kModel, "label2id"),
    harmless(kModel, "length_penalty"),
    harmless(kModel, "max_length"),
    harmless(kModel, "min_length"),
    harmless(kModel, "mlp_bias"),
    harmless(kModel, "mlp_layer_types"),
    harmless(kModel, "moe_*"),
    harmless(kModel, "n_group"),
    harmless(kModel, "n_hash_layers"),
    harmless(kModel, "n_routed_experts"),
    harmless(kModel, "n_shared_experts"),
    harmless(kModel, "no_repeat_ngram_size"),
    harmless(kModel, "norm_topk_prob"),
    harmless(kModel, "num_beam_groups"),
    harmless(kModel, "num_beams"),
    harmless(kModel, "num_experts"),
    harmless(kModel, "num_experts_per_tok"),
    harmless(kModel, "num_hash_layers"),
    harmless(kModel, "num_labels"),
    harmless(kModel, "num_local_experts"),
    harmless(kModel, "num_return_sequences"),
    harmless(kModel, "output_hidden_states"),
    harmless(kModel, "output_router_logits"),
    harmless(kModel, "output_scores"),
    harmless(kModel, "pad_token_id"),
    harmless(kModel, "prefix"),
    harmless(kModel, "pretraining_tp"),
    harmless(kModel, "problem_type"),
    harmless(kModel, "remove_invalid_values"),
    harmless(kModel, "repetition_penalty"),
    harmless(kModel, "return_dict"),
    harmless(kModel, "return_dict_in_generate"),
    harmless(kModel, "routed_scaling_factor"),
    harmless(kModel, "router_aux_loss_coef"),
    harmless(kModel, "router_jitter_noise"),
    harmless(kModel, "scoring_func"),
    harmless(kModel, "sep_token_id"),
    harmless(kModel, "seq_aux"),
    harmless(kModel, "suppress_tokens"),
    harmless(kModel, "swiglu_limit"),
    harmless(kModel, "task_specific_params"),
    harmless(kModel, "temperature"),
    harmless(kModel, "tf_legacy_loss"),
    harmless(kModel, "tie_encoder_decoder"),
    harmless(kModel, "tie_word_embeddings"),
    harmless(kModel, "tokenizer_class"),
    harmless(kModel, "top_k"),
    harmless(kModel, "top_p"),
    harmless(kModel, "topk_group"),
    harmless(kModel, "topk_method"),
    harmless(kModel, "torch_dtype"),
    harmless(kModel, "torchscript"),
    harmless(kModel, "transformers_version"),
    harmless(kModel, "typical_p"),
    harmless(kModel, "use_bfloat16"),
    harmless(kModel, "use_cache"),
    harmless(kModel, "vocab_size"),

    honoured(kRope, "type"),
    honoured(kRope, "rope_type"),
    honoured(kRope, "rope_theta"),
    honoured(kRope, "partial_rotary_factor"),
    honoured(kRope, "factor"),
    honoured(kRope, "original_max_position_embeddings"),
    honoured(kRope, "beta_fast"),
    honoured(kRope, "beta_slow"),
    honoured(kRope, "truncate"),
    honoured_mla(kRope, "mscale"),
    honoured_mla(kRope, "mscale_all_dim"),
    honoured_mla(kRope, "attn_factor"),
    honoured_mla(kRope, "attention_factor"),
    // V4 has no magnitude correction (V4 5.4). mscale and mscale_all_dim of equal value cancel in cos and sin, which is all that V4 has.
    must_be_v4(kRope, "mscale", "1"),
    must_be_v4(kRope, "mscale_all_dim", "1"),
    must_be_v4(kRope, "attn_factor", "1"),
    must_be_v4(kRope, "attention_factor", "1"),
    must_be(kRope, "extrapolation_factor", "1"),
    must_be(kRope, "apply_yarn_scaling", "true"),

    honoured(kQuant, "quant_method"),
    honoured(kQuant, "scale_fmt"),
    honoured(kQuant, "weight_block_size"),
    must_be(kQuant, "fmt", "\"e4m3\""),
    must_be(kQuant, "activation_scheme", "\"dynamic\""),
    // Which matrices are quantised is read off the tensors. The format of the caches is the caller's.
    harmless(kQuant, "modules_to_not_convert"),
    harmless(kQuant, "modules_to_convert"),
    harmless(kQuant, "ignored_layers"),
    harmless(kQuant, "kv_cache_scheme"),
    harmless(kQuant, "expert_dtype"),
    harmless(kQuant, "dequantize"),
    harmless(kQuant, "bits"),
});

constexpr auto kSuggestive =
    std::to_array<std::string_view>({"attn", "attention", "rope", "rotary", "indexer", "index_topk", "compress", "kv_", "q_lora", "qk_",
                                     "heads", "head_dim", "sliding", "window", "sink", "mla", "yarn", "mscale", "softmax"});

bool matches(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  pattern.remove_suffix(1);
  return name.starts_with(pattern);
}

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }

const ConfigKey* find_config_key(KeyScope scope, std::string_view name, ModelFamily family) {
  const auto is_it = [&](const ConfigKey& key) {
    return key.scope == scope && (family == ModelFamily::deepseek_v4 ? key.v4 : key.mla) && matches(key.name, name);
  };
  const auto it = std::find_if(kKeys.begin(), kKeys.end(), is_it);
  return it == kKeys.end() ? nullptr : &*it;
}

bool suggests_attention(std::string_view name) {
  return std::any_of(kSuggestive.begin(), kSuggestive.end(), [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

void check_config_keys(const nlohmann::json& object, KeyScope scope, ModelFamily family, const std::string& origin,
                       const std::string& prefix, const std::vector<std::string>& accepted, std::vector<std::string>& unknown) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    if (const ConfigKey* key = find_config_key(scope, name, family)) {
      if (key->effect != KeyEffect::must_be || value == nlohmann::json::parse(key->value)) continue;
      fail(ErrorCode::invalid_file, "{}: {}{}: expected {}, the only value whose attention is computed here, is {}", origin, prefix, name,
           key->value, brief(value));
    }
    const std::string full = prefix + name;
    const bool is_accepted = std::find(accepted.begin(), accepted.end(), full) != accepted.end();
    if (!is_accepted && (scope == KeyScope::rope || suggests_attention(name))) {
      fail(ErrorCode::invalid_file,
           "{}: key {}: expected a key that is known, as this one may change attention, has value {}; if attention does not depend on it, "
           "accept it (ConfigOptions::accept_keys, --accept-key {})",
           origin, brief(nlohmann::json(full)), brief(value), brief(nlohmann::json(full)));
    }
    unknown.push_back(full);
  }
}

}  // namespace strata
