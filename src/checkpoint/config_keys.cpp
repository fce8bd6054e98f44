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
constexpr auto kOuter = KeyScope::outer;
constexpr auto kQuant = KeyScope::quantization;
constexpr auto kQuantiser = KeyScope::quantiser;
constexpr auto kGroup = KeyScope::group;
constexpr auto kValues = KeyScope::group_values;

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
    honoured_mla(kModel, "num_key_value_heads"),
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
    must_be(kModel, "is_causal", "true"),
    must_be(kModel, "is_encoder_decoder", "false"),
    must_be(kModel, "position_embedding_type", "\"rope\""),
    must_be(kModel, "use_bias", "false"),
    must_be(kModel, "use_qkv_bias", "false"),
    must_be(kModel, "qkv_bias", "false"),
    must_be(kModel, "use_qk_norm", "false"),
    must_be_v4(kModel, "num_key_value_heads", "1"),

    // Names that suggest attention, and do not change what a layer computes.
    harmless(kModel, "attention_dropout"),  // of training
    harmless(kModel, "attention_probs_dropout_prob"),
    harmless(kModel, "_attn_implementation*"),  // which kernel another library takes
    harmless(kModel, "attn_implementation"),
    harmless(kModel, "output_attentions"),
    harmless(kModel, "index_share_for_mtp_iteration"),  // ForwardArgs::skip_topk, which the engine decides at each step
    harmless(kModel, "final_logit_softcapping"),
    harmless(kModel, "decoder_sparse_step"),  // which layers have experts
    harmless_mla("head_dim"),                 // 64, 192 or 576 by author: qk_nope_head_dim and qk_rope_head_dim are meant

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

    // The rest of a model of several modalities.
    harmless(kOuter, "audio_*"),
    harmless(kOuter, "ignore_index"),
    harmless(kOuter, "image_*"),
    harmless(kOuter, "media_*"),
    harmless(kOuter, "mm_*"),
    harmless(kOuter, "projector_*"),
    harmless(kOuter, "use_unified_vision_chunk"),
    harmless(kOuter, "video_*"),
    harmless(kOuter, "vision_*"),
    harmless(kOuter, "vt_*"),

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

    honoured(kQuantiser, "quant_method"),
    honoured(kQuantiser, "quant_algo"),
    honoured(kQuantiser, "quantization"),  // ModelOpt's own file, nested
    honoured(kQuantiser, "config_groups"),
    honoured(kQuantiser, "sparsity_config"),
    // Matrices that are left as they were: one key, and several where quantisers differ.
    honoured(kQuantiser, "ignore"),
    honoured(kQuantiser, "modules_to_not_convert"),
    honoured(kQuantiser, "ignored_layers"),
    honoured(kQuantiser, "exclude_modules"),
    honoured(kQuantiser, "exclude"),
    honoured(kQuantiser, "llm_int8_skip_modules"),
    honoured(kQuantiser, "skip_modules"),
    honoured(kQuantiser, "linear_weights_not_to_quantize"),
    honoured(kQuantiser, "dynamic"),       // GPTQModel: "-:pattern" leaves matrices alone
    honoured(kQuantiser, "extra_config"),  // AutoRound: 16 bits do
    must_be(kQuantiser, "transform_config", "{}"),
    must_be(kQuantiser, "rotate", "false"),
    must_be(kQuantiser, "rotation_config", "{}"),
    harmless(kQuantiser, "backend"),
    harmless(kQuantiser, "bits"),
    harmless(kQuantiser, "desc_act"),
    harmless(kQuantiser, "format"),
    harmless(kQuantiser, "global_compression_ratio"),
    harmless(kQuantiser, "group_size"),
    harmless(kQuantiser, "kv_cache_quant_algo"),  // the format of the caches is the caller's
    harmless(kQuantiser, "kv_cache_scheme"),
    harmless(kQuantiser, "packing_format"),
    harmless(kQuantiser, "producer"),
    harmless(kQuantiser, "quantization_status"),
    harmless(kQuantiser, "sym"),
    harmless(kQuantiser, "version"),
    harmless(kQuantiser, "zero_point"),

    honoured(kGroup, "weights"),
    honoured(kGroup, "input_activations"),
    honoured(kGroup, "targets"),
    must_be(kGroup, "output_activations", "null"),
    harmless(kGroup, "format"),

    honoured(kValues, "num_bits"),
    honoured(kValues, "type"),
    honoured(kValues, "strategy"),
    honoured(kValues, "group_size"),
    honoured(kValues, "block_structure"),
    honoured(kValues, "dynamic"),
    must_be(kValues, "symmetric", "true"),
    must_be(kValues, "actorder", "null"),
    must_be(kValues, "scale_dtype", "null"),
    must_be(kValues, "rotate", "false"),
    harmless(kValues, "zp_dtype"),  // of zero points, which symmetric values have not
    harmless(kValues, "observer"),
    harmless(kValues, "observer_kwargs"),
});

// Parts of names, in lower case.
constexpr auto kSuggestive = std::to_array<std::string_view>({"alibi",
                                                              "attn",
                                                              "attention",
                                                              "bidirectional",
                                                              "causal",
                                                              "clip_qkv",
                                                              "compress",

                                                              "encoder_decoder",
                                                              "gated_norm",
                                                              "gated_output",
                                                              "head_dim",
                                                              "heads",
                                                              "index_",
                                                              "indexer",
                                                              "indexed",
                                                              "inv_freq",
                                                              "k_bias",
                                                              "k_norm",
                                                              "key_",
                                                              "keys",
                                                              "kv_",
                                                              "layers_block_type",
                                                              "llama_4_scaling",
                                                              "logn",
                                                              "longrope",
                                                              "lora_rank",
                                                              "mamba",
                                                              "mscale",
                                                              "n_head",
                                                              "ntk",
                                                              "o_bias",
                                                              "o_gate",
                                                              "o_groups",
                                                              "o_lora",
                                                              "o_norm",
                                                              "original_max_position",
                                                              "output_gate",
                                                              "position_embedding",
                                                              "positional",
                                                              "q_bias",
                                                              "q_lora",
                                                              "q_norm",
                                                              "qk_",
                                                              "qkv",
                                                              "query",
                                                              "rope",
                                                              "rotary",
                                                              "rotate",
                                                              "short_conv",
                                                              "sink",
                                                              "sliding",
                                                              "softcap",
                                                              "softmax",
                                                              "sparse_",
                                                              "ssm_",
                                                              "temperature_tuning",
                                                              "theta",
                                                              "use_bias",
                                                              "v_bias",
                                                              "v_norm",
                                                              "value_",
                                                              "window",
                                                              "xpos",
                                                              "yarn"});

// Whole words of names, too short to be looked for within others.
constexpr auto kSuggestiveWords = std::to_array<std::string_view>(
    {"beta", "csa", "dsa", "gqa", "hca", "key", "mha", "mla", "mqa", "nope", "nsa", "qk", "swa", "value", "values"});

std::string lower_case(std::string_view name) {
  std::string result(name);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// `word` is in `name`, between its ends, '_', '.' and '-'.
bool has_word(std::string_view name, std::string_view word) {
  const auto is_end = [&](size_t at) { return at >= name.size() || name[at] == '_' || name[at] == '.' || name[at] == '-'; };
  for (size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    if ((at == 0 || is_end(at - 1)) && is_end(at + word.size())) return true;
  }
  return false;
}

// An object of an unknown name that describes another model, or this one once more.
bool describes_latents(const nlohmann::json& value) {
  return value.is_object() && (value.contains("kv_lora_rank") || value.contains("q_lora_rank") || value.contains("o_lora_rank"));
}

// A scope of which every key may change the result.
bool is_closed(KeyScope scope) { return scope == KeyScope::rope || scope == KeyScope::group || scope == KeyScope::group_values; }

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
  const std::string lower = lower_case(name);
  return std::any_of(kSuggestive.begin(), kSuggestive.end(),
                     [&](std::string_view part) { return lower.find(part) != std::string::npos; }) ||
         std::any_of(kSuggestiveWords.begin(), kSuggestiveWords.end(), [&](std::string_view word) { return has_word(lower, word); });
}

void check_config_value(const ConfigKey& key, const nlohmann::json& value, const std::string& origin, const std::string& full_name) {
  if (key.effect != KeyEffect::must_be || value.is_null() || value == nlohmann::json::parse(key.value)) return;
  fail(ErrorCode::invalid_file, "{}: {}: expected {}, the only value whose attention is computed here, is {}", origin, full_name, key.value,
       brief(value));
}

void refuse_or_list(const std::string& full_name, const nlohmann::json& value, bool refuse, const std::string& origin,
                    const std::vector<std::string>& accepted, std::vector<std::string>& unknown) {
  if ((refuse || describes_latents(value)) && std::find(accepted.begin(), accepted.end(), full_name) == accepted.end()) {
    fail(ErrorCode::invalid_file,
         "{}: key {}: expected a key that is known, as this one may change attention, has value {}; if attention does not depend on it, "
         "accept it (ConfigOptions::accept_keys, --accept-key {})",
         origin, quoted_key(full_name), brief(value), quoted_key(full_name));
  }
  unknown.push_back(full_name);
}

void check_config_keys(const nlohmann::json& object, KeyScope scope, ModelFamily family, const std::string& origin,
                       const std::string& prefix, const std::vector<std::string>& accepted, std::vector<std::string>& unknown) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    if (const ConfigKey* key = find_config_key(scope, name, family)) {
      check_config_value(*key, value, origin, prefix + name);
    } else {
      refuse_or_list(prefix + name, value, is_closed(scope) || suggests_attention(name), origin, accepted, unknown);
    }
  }
}

}  // namespace strata
