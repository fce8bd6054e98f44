// The attention-related contents of a model's config.json. V4 specification 3, MLA specification 2.
#ifndef STRATA_C_MODEL_CONFIG_H
#define STRATA_C_MODEL_CONFIG_H

#include "strata/c/ops/rope.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Models whose attention layers have one structure.
typedef int32_t strata_model_family;
enum {
  STRATA_FAMILY_DEEPSEEK_V4 = 0,  // DeepSeek-V4: the V4 specification
  STRATA_FAMILY_DEEPSEEK_MLA = 1  // Multi-head Latent Attention: the MLA specification
};

// A published model whose attention layers this library computes. Its texts are valid as long as the library is loaded.
typedef struct strata_supported_model {
  size_t struct_size;          // sizeof(strata_supported_model)
  const char* model_type;      // of config.json: "deepseek_v3"
  const char* architecture;    // architectures[0]: "DeepseekV3ForCausalLM"
  strata_model_family family;  // the structure of its layers
  const char* releases;        // published models of this kind: "DeepSeek-V3, V3.1, R1"
} strata_supported_model;
// A struct of zeros but struct_size.
static inline strata_supported_model strata_supported_model_default(void) {
  strata_supported_model model;
  memset(&model, 0, sizeof model);
  model.struct_size = sizeof model;
  return model;
}
// The number of supported models: no status.
STRATA_API int64_t strata_num_supported_models(void) STRATA_NOEXCEPT;
// Supported model `index`, in [0, strata_num_supported_models()), in the order of README's table. Fills *model, whose struct_size is given,
// as strata_supported_model_default() sets it. Errors: STRATA_INVALID_ARGUMENT for another index.
STRATA_API strata_status strata_supported_model_get(int64_t index, strata_supported_model* model) STRATA_NOEXCEPT;

// How a model's config.json is read.
typedef struct strata_config_options {
  size_t struct_size;  // sizeof(strata_config_options)
  // Unknown keys that the reader would refuse because their names suggest an effect on attention: "attn_gate", "rope_parameters.beta_mid".
  // The caller states that they have none. A key with a known meaning cannot be accepted here.
  const char* const* accept_keys;  // texts [num_accept_keys]
  int64_t num_accept_keys;         // 0: none
  // Architectures and model_types whose layers the caller provides. A config with such a model_type is read with MLA's keys.
  const char* const* own_models;  // texts [num_own_models]
  int64_t num_own_models;         // 0: none
} strata_config_options;
// A struct of zeros but struct_size.
static inline strata_config_options strata_config_options_default(void) {
  strata_config_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  return options;
}

// Reads a config.json, or the one in a directory. It reads the published files, and what transformers 5 writes. Every known key is used, or
// must have the one value that this library computes, or is known not to affect attention. options may be null. Errors: STRATA_INVALID_FILE
// naming key, expected and actual value, also for a file that cannot be read; STRATA_INVALID_ARGUMENT for options that are not valid.
STRATA_API strata_status strata_model_config_load(const char* path, const strata_config_options* options,
                                                  strata_model_config* config) STRATA_NOEXCEPT;
// The same of a text. origin: the name of the text in errors; null: "config.json". Both may be freed after the call.
STRATA_API strata_status strata_model_config_parse(const char* json, const char* origin, const strata_config_options* options,
                                                   strata_model_config* config) STRATA_NOEXCEPT;
// The config of an official model: "v4-flash", "v3", "v3-tiny", ... Errors: STRATA_INVALID_ARGUMENT, listing the names, for another name.
STRATA_API strata_status strata_model_config_preset(const char* name, strata_model_config* config) STRATA_NOEXCEPT;
// The number of names that strata_model_config_preset takes: no status.
STRATA_API int64_t strata_num_presets(void) STRATA_NOEXCEPT;
// Name `index`, in [0, strata_num_presets()), valid as long as the library is loaded. Errors: STRATA_INVALID_ARGUMENT for another index.
STRATA_API strata_status strata_preset_name(int64_t index, const char** name) STRATA_NOEXCEPT;
// Gives the handle back. Checkpoints that were made from the config stay valid.
STRATA_API strata_status strata_model_config_destroy(strata_model_config config) STRATA_NOEXCEPT;

// config.json in the official spelling, without unknown keys; reading it gives an equal config. Text, size and needed as of
// strata_device_description.
STRATA_API strata_status strata_model_config_to_json(strata_model_config config, char* text, int64_t size, int64_t* needed) STRATA_NOEXCEPT;

// The contents of a config. Names are those of config.json where it has them; sizes are per model, not per tensor-parallel rank. Pointers
// are valid until the config is destroyed.
typedef struct strata_model_info {
  size_t struct_size;          // sizeof(strata_model_info)
  const char* architecture;    // architectures[0]: "DeepseekV4ForCausalLM"
  const char* model_type;      // "deepseek_v4"
  strata_model_family family;  // the structure of the layers

  int64_t hidden_size;                  // width of the hidden states
  int64_t num_hidden_layers;            // main layers
  int64_t num_nextn_predict_layers;     // MTP layers after the main ones
  int64_t num_attention_heads;          // query heads
  int64_t q_lora_rank;                  // 0: no query latent (MLA)
  int64_t max_position_embeddings;      // positions that the model was trained for
  double rms_norm_eps;                  // added to the mean square in RMSNorm
  double rope_theta;                    // base of the rotary frequencies
  int32_t has_yarn;                     // 0: the other rope_ fields are not used, except rope_theta
  double rope_factor;                   // YaRN: by how much the context is extended
  int64_t rope_original_max_position;   // YaRN: positions before the extension
  double rope_beta_fast;                // YaRN: rotations where the ramp begins
  double rope_beta_slow;                // YaRN: rotations where the ramp ends
  double rope_mscale;                   // MLA; 1 when absent from the file
  double rope_mscale_all_dim;           // MLA; 0 when absent from the file: the softmax scale is unchanged
  double rope_attn_factor;              // MLA; factor of cos and sin
  const double* rope_attention_factor;  // MLA; replaces the gain of cos and sin that the mscales give; null: absent
  int32_t rope_truncate;                // YaRN: 1: bounds of the ramp are rounded outward to whole pairs

  // V4
  int64_t head_dim;                // V4: dimensions of a head, D
  int64_t qk_rope_head_dim;        // rotary dimensions of a head, R; MLA too
  int64_t o_groups;                // V4: groups of heads in the output path (V4 15)
  int64_t o_lora_rank;             // V4: output features of wo_a per group
  int64_t sliding_window;          // V4: positions of the window, the query token included
  double compress_rope_theta;      // V4: base of the rotary frequencies in compressed layers
  const int32_t* compress_ratios;  // [num_compress_ratios], one entry per layer, as in the file: 0, 4 or 128
  int64_t num_compress_ratios;     // 0: compress_ratios is null

  // Indexer (V4 ratio 4; V3.2). index_topk 0: the model has none.
  int64_t index_n_heads;   // heads of the indexer, Hi
  int64_t index_head_dim;  // dimensions of an indexer head, Di
  int64_t index_topk;      // entries that a token selects
  // V3.2: which layers reuse the selection of an earlier one (MLA 12).
  const char* index_topk_pattern;   // one character per layer, 'S': reuses; empty: index_topk_freq decides
  int64_t index_topk_freq;          // 1: every layer selects
  int64_t index_skip_topk_offset;   // shifts that period (MLA 12)
  int32_t indexer_rope_interleave;  // V3.2: 1: the indexer's rotation pairs neighbours (MLA 6.2)

  // MLA
  int64_t kv_lora_rank;      // MLA: dimensions of the latent, L
  int64_t qk_nope_head_dim;  // MLA: dimensions of a head that are not rotated, P
  int64_t v_head_dim;        // MLA: dimensions of a value, V

  // quantization_config
  int32_t fp8_weights;           // 1: e4m3 weights with a scale per block
  int32_t scale_ue8m0;           // 1: scale_fmt "ue8m0": activation scales are powers of two
  int64_t weight_block_size[2];  // rows and columns of W per scale

  // A quantiser whose formats the attention layers do not read ("awq"). It must have left the attention weights in bf16. Empty: none.
  const char* other_quant_method;
} strata_model_info;
// A struct of zeros but struct_size.
static inline strata_model_info strata_model_info_default(void) {
  strata_model_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  return info;
}
// Fills *info, whose struct_size is given, as strata_model_info_default() sets it.
STRATA_API strata_status strata_model_config_get_info(strata_model_config config, strata_model_info* info) STRATA_NOEXCEPT;

// Ratio of a layer as the layer uses it: 1 (window only; file value 0, or an MTP layer), 4 or 128. MLA: 1. MTP layer j is num_hidden_layers
// + j. Errors: STRATA_INVALID_ARGUMENT for a layer that the model does not have, as of the two functions below.
STRATA_API strata_status strata_model_config_compress_ratio(strata_model_config config, int64_t layer, int32_t* ratio) STRATA_NOEXCEPT;
// Parameters of a layer's rotary table (V4 5.4, MLA 6.1). Fills *rope, whose struct_size is given, as strata_rope_config_default() sets
// it.
STRATA_API strata_status strata_model_config_rope(strata_model_config config, int64_t layer, strata_rope_config* rope) STRATA_NOEXCEPT;
// 1 when the layer has no indexer of its own and reuses the selection of the nearest earlier layer with one. Always 0 for MTP layers.
STRATA_API strata_status strata_model_config_skip_topk(strata_model_config config, int64_t layer, int32_t* skip) STRATA_NOEXCEPT;
// MLA: (P + R)^-0.5, with YaRN times the square of its magnitude correction. Both forms of the attention use it (MLA 2). Errors:
// STRATA_INVALID_ARGUMENT for a model of another family.
STRATA_API strata_status strata_model_config_softmax_scale(strata_model_config config, double* scale) STRATA_NOEXCEPT;
// Keys of the file that this library does not know, ascending: those whose names do not suggest attention, and those accepted by
// accept_keys. At most `capacity` texts are written to `keys` (capacity 0: keys may be null); *count (may be null) is their number. The
// texts are valid until the config is destroyed.
STRATA_API strata_status strata_model_config_unknown_keys(strata_model_config config, const char** keys, int64_t capacity,
                                                          int64_t* count) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
