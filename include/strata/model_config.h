// The attention-related contents of a model's config.json. V4 specification 3, MLA specification 2.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/ops/rope.h"

namespace strata {

// Models whose attention layers have one structure.
enum class ModelFamily : uint8_t {
  deepseek_v4,   // DeepSeek-V4: the V4 specification
  deepseek_mla,  // Multi-head Latent Attention: the MLA specification
};

// A published model whose attention layers this library computes.
struct SupportedModel {
  std::string_view model_type;    // of config.json: "deepseek_v3"
  std::string_view architecture;  // architectures[0]: "DeepseekV3ForCausalLM"
  ModelFamily family;             // the structure of its layers
  std::string_view releases;      // published models of this kind: "DeepSeek-V3, V3.1, R1"
};
// All of them, in the order of README's table. The layers of default_layers() and cache_groups_of_layer() take exactly these.
std::span<const SupportedModel> supported_models();

// How a config.json is read.
struct ConfigOptions {
  // Unknown keys that the reader would refuse because their names suggest an effect on attention: "attn_gate", "rope_parameters.beta_mid".
  // The caller states that they have none. A key with a known meaning cannot be accepted here.
  std::vector<std::string> accept_keys{};
  // Architectures and model_types whose layers the caller provides. A config with such a model_type is read with MLA's keys.
  std::vector<std::string> own_models{};
};

// Names are those of config.json where it has them; sizes are per model, not per tensor-parallel rank.
struct ModelConfig {
  std::string architecture;                       // architectures[0]: "DeepseekV4ForCausalLM"
  std::string model_type;                         // "deepseek_v4"
  ModelFamily family = ModelFamily::deepseek_v4;  // the structure of the layers

  int64_t hidden_size = 0;                      // width of the hidden states
  int64_t num_hidden_layers = 0;                // main layers
  int64_t num_nextn_predict_layers = 0;         // MTP layers after the main ones
  int64_t num_attention_heads = 0;              // query heads
  int64_t q_lora_rank = 0;                      // 0: no query latent (MLA)
  int64_t max_position_embeddings = 0;          // positions that the model was trained for
  double rms_norm_eps = 1e-6;                   // added to the mean square in RMSNorm
  double rope_theta = 10000.0;                  // base of the rotary frequencies
  bool has_yarn = false;                        // false: the other rope_ fields are not used, except rope_theta
  double rope_factor = 1.0;                     // YaRN: by how much the context is extended
  int64_t rope_original_max_position = 0;       // YaRN: positions before the extension
  double rope_beta_fast = 32.0;                 // YaRN: rotations where the ramp begins
  double rope_beta_slow = 1.0;                  // YaRN: rotations where the ramp ends
  double rope_mscale = 1.0;                     // MLA; 1 when absent from the file
  double rope_mscale_all_dim = 0.0;             // MLA; 0 when absent from the file: the softmax scale is unchanged
  double rope_attn_factor = 1.0;                // MLA; factor of cos and sin
  std::optional<double> rope_attention_factor;  // MLA; replaces the gain of cos and sin that the mscales give
  bool rope_truncate = true;                    // YaRN: bounds of the ramp are rounded outward to whole pairs

  // V4
  int64_t head_dim = 512;                // V4: dimensions of a head, D
  int64_t qk_rope_head_dim = 64;         // rotary dimensions of a head, R; MLA too
  int64_t o_groups = 0;                  // V4: groups of heads in the output path (V4 15)
  int64_t o_lora_rank = 0;               // V4: output features of wo_a per group
  int64_t sliding_window = 0;            // V4: positions of the window, the query token included
  double compress_rope_theta = 0.0;      // V4: base of the rotary frequencies in compressed layers
  std::vector<int32_t> compress_ratios;  // one entry per layer, as in the file: 0, 4 or 128

  // Indexer (V4 ratio 4; V3.2). index_topk 0: the model has none.
  int64_t index_n_heads = 0;   // heads of the indexer, Hi
  int64_t index_head_dim = 0;  // dimensions of an indexer head, Di
  int64_t index_topk = 0;      // entries that a token selects
  // V3.2: which layers reuse the selection of an earlier one (MLA 12).
  std::string index_topk_pattern;        // one character per layer, 'S': reuses; empty: index_topk_freq decides
  int64_t index_topk_freq = 1;           // 1: every layer selects
  int64_t index_skip_topk_offset = 2;    // shifts that period (MLA 12)
  bool indexer_rope_interleave = false;  // V3.2: the indexer's rotation pairs neighbours (MLA 6.2)

  // MLA
  int64_t kv_lora_rank = 0;      // MLA: dimensions of the latent, L
  int64_t qk_nope_head_dim = 0;  // MLA: dimensions of a head that are not rotated, P
  int64_t v_head_dim = 0;        // MLA: dimensions of a value, V

  // quantization_config
  bool fp8_weights = false;                            // e4m3 weights with a scale per block
  bool scale_ue8m0 = false;                            // scale_fmt "ue8m0": activation scales are powers of two
  std::array<int64_t, 2> weight_block_size{128, 128};  // rows and columns of W per scale

  // A quantiser whose formats the attention layers do not read ("awq"). It must have left the attention weights in bf16. Empty: none.
  std::string other_quant_method;

  // Compares every field above; unknown_keys() are ignored.
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  // Ratio of layer i as the layer uses it: 1 (window only; file value 0, or an MTP layer), 4 or 128. MLA: 1.
  int32_t compress_ratio(int64_t layer) const;
  // Parameters of layer i's rotary table (V4 5.4, MLA 6.1).
  RopeConfig rope(int64_t layer) const;

  // MLA: (P + R)^-0.5, with YaRN times the square of its magnitude correction. Both forms of the attention use it (MLA 2).
  double softmax_scale() const;

  // Keys of the file that this library does not know, ascending: those whose names do not suggest attention, and those accepted by
  // accept_keys. "vision_start_id", "rope_parameters.beta_mid".
  const std::vector<std::string>& unknown_keys() const { return unknown_.keys; }

  // True when layer i has no indexer of its own and reuses the selection of the nearest earlier layer with one. Always false for MTP
  // layers.
  bool skip_topk(int64_t layer) const;

  // Reads the published files, and what transformers 5 writes (rope_parameters, layer_types, compress_rates, a model nested in
  // text_config).
  // Every known key is used, or must have the one value that this library computes, or is known not to affect attention
  // (src/checkpoint/config_keys.cpp). For other keys see accept_keys and unknown_keys().
  // Throws invalid_file naming key, expected and actual value: for syntax, missing keys, wrong types and keys that contradict each other;
  // for impossible values (zero heads, head_dim other than 512, ratios other than 0, 4, 128, o_groups that do not divide the heads, ...);
  // and for models whose attention only resembles these.
  // origin: the name of the text in errors.
  static ModelConfig parse(const std::string& json_text, const std::string& origin = "config.json", const ConfigOptions& options = {});
  // parse() of a file, or of config.json in a directory. Throws invalid_file also for a file that cannot be read.
  static ModelConfig load(const std::filesystem::path& file_or_directory, const ConfigOptions& options = {});
  // Checks every value, as parse and load do. Throws invalid_file.
  void validate() const;
  // config.json in the official spelling; parse(to_json()) == *this. unknown_keys() are not written.
  std::string to_json() const;

 private:
  struct UnknownKeys {
    std::vector<std::string> keys;
    friend bool operator==(const UnknownKeys&, const UnknownKeys&) { return true; }
  };
  UnknownKeys unknown_;
};

// The config of an official model: "v4-tiny", "v4-flash", "v4-pro", "v2-lite", "v3", "v3.2", "v2-lite-tiny", "v3-tiny", "v3.2-tiny". tiny:
// the same structure with small sizes. Throws invalid_argument, listing the names, for another name.
ModelConfig preset(const std::string& name);
// The names that preset() takes.
std::vector<std::string> preset_names();

}  // namespace strata
