// The attention part of a model's config.json: V4 specification 3, MLA specification 2.
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

enum class ModelFamily : uint8_t { deepseek_v4, deepseek_mla };

// A model whose attention layers this library computes.
struct SupportedModel {
  std::string_view model_type;    // of config.json: "deepseek_v3"
  std::string_view architecture;  // architectures[0]: "DeepseekV3ForCausalLM"
  ModelFamily family;
  std::string_view releases;  // published models of this kind: "DeepSeek-V3, V3.1, R1"
};
// Every one of them, in the order of README's table. The layers of default_layers() and cache_groups_of_layer() take exactly these.
std::span<const SupportedModel> supported_models();

// How a config.json is read.
struct ConfigOptions {
  // Keys that the reader does not know and would refuse, because their names suggest that they change attention: "attn_gate",
  // "rope_parameters.beta_mid". The caller says that they do not. A key with a known meaning cannot be accepted this way.
  std::vector<std::string> accept_keys{};
  // Names in architectures and model_type of models whose layers the caller has. A config with such a model_type is read as MLA's.
  std::vector<std::string> own_models{};
};

struct ModelConfig {
  std::string architecture;  // architectures[0]: "DeepseekV4ForCausalLM"
  std::string model_type;    // "deepseek_v4"
  ModelFamily family = ModelFamily::deepseek_v4;

  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_nextn_predict_layers = 0;  // MTP layers behind the main ones
  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;  // 0: none (MLA without a query latent)
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool has_yarn = false;
  double rope_factor = 1.0;
  int64_t rope_original_max_position = 0;
  double rope_beta_fast = 32.0;
  double rope_beta_slow = 1.0;
  double rope_mscale = 1.0;                     // MLA; 1 when the file does not say
  double rope_mscale_all_dim = 0.0;             // MLA; 0 when the file does not say: no change of the softmax scale
  double rope_attn_factor = 1.0;                // MLA; multiplies cos and sin
  std::optional<double> rope_attention_factor;  // MLA; the gain of cos and sin itself, in place of what the mscales give
  bool rope_truncate = true;                    // the bounds of YaRN's ramp are rounded to whole pairs

  // V4
  int64_t head_dim = 512;
  int64_t qk_rope_head_dim = 64;
  int64_t o_groups = 0;
  int64_t o_lora_rank = 0;
  int64_t sliding_window = 0;
  double compress_rope_theta = 0.0;
  std::vector<int32_t> compress_ratios;  // one entry per layer as in the file: 0, 4 or 128

  // Indexer (V4 ratio 4; V3.2). index_topk 0: the model has none.
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  // V3.2: which layers reuse the selection of an earlier one (MLA 12).
  std::string index_topk_pattern;  // a character per layer, 'S': reuses; empty: index_topk_freq decides
  int64_t index_topk_freq = 1;     // 1: every layer selects
  int64_t index_skip_topk_offset = 2;
  bool indexer_rope_interleave = false;  // V3.2: pairs of the indexer's rotation (MLA 6.2)

  // MLA
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t v_head_dim = 0;

  // quantization_config
  bool fp8_weights = false;
  bool scale_ue8m0 = false;                            // scale_fmt "ue8m0": power-of-two activation scales
  std::array<int64_t, 2> weight_block_size{128, 128};  // rows and columns of W that share a scale

  // A quantiser whose formats the attention layers do not read ("awq"): it must have left their weights in bf16. Empty: none.
  std::string other_quant_method;

  // Every field above. unknown_keys() do not count.
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  // Ratio of layer i as the layer uses it: 1 (window only; config 0 or an MTP layer), 4 or 128. MLA: 1.
  int32_t compress_ratio(int64_t layer) const;
  // The one rotary table of layer i (V4 5.4, MLA 6.1).
  RopeConfig rope(int64_t layer) const;

  // MLA: (P + R)^-0.5, with YaRN times the square of its magnitude correction. The same in both forms of the attention (MLA 2).
  double softmax_scale() const;

  // Keys of the file that this library does not know and whose names do not suggest attention, and those that accept_keys let pass:
  // "vision_start_id", "rope_parameters.beta_mid". Ascending.
  const std::vector<std::string>& unknown_keys() const { return unknown_.keys; }

  // True when layer i has no indexer of its own and attends to what the nearest earlier layer with one selected. MTP layers never do.
  bool skip_topk(int64_t layer) const;

  // Reads the published files and what transformers 5 writes (rope_parameters, layer_types, compress_rates, a model nested in
  // text_config). Every key is honoured, must have the one value that this library computes, or is known to have no effect on attention
  // (src/checkpoint/config_keys.cpp); of the rest see accept_keys and unknown_keys().
  // Throws invalid_file naming key, expected and actual value: syntax, missing keys, wrong types, keys that contradict each other, values
  // that cannot be (zero heads, head_dim other than 512, ratios other than 0, 4, 128, o_groups that do not divide the heads, ...), and
  // models whose attention only looks like this one.
  static ModelConfig parse(const std::string& json_text, const std::string& origin = "config.json", const ConfigOptions& options = {});
  static ModelConfig load(const std::filesystem::path& file_or_directory, const ConfigOptions& options = {});
  // Checks of every value; parse and load call it.
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

// "v4-tiny", "v4-flash", "v4-pro", "v2-lite", "v3", "v3.2", "v2-lite-tiny", "v3-tiny", "v3.2-tiny": official shapes (tiny: the same
// structure, small). Throws invalid_argument listing the names.
ModelConfig preset(const std::string& name);
std::vector<std::string> preset_names();

}  // namespace strata
