// The options of `run`, `replay` and `plan` that set formats and modes of the layers.
#pragma once

#include <string>

#include "common.h"
#include "strata/attention.h"

namespace strata::cli {

struct LayerFlags {
  std::string indexer = "fp8";
  std::string kv_format = "auto";
  std::string prefill = "auto";
  std::string mla_mode = "auto";
  bool kv_scale_ue8m0 = false;
  bool hadamard = false;
  bool fp8_output = false;
  bool bf16_activations = false;
  bool batch_invariant = false;
};
void add_layer_flags(CLI::App& app, LayerFlags& flags);
// Everything but the limits. Throws strata::Error for unknown names, and for options that the layers of this model do not have.
LayerOptions layer_options(const LayerFlags& flags, const ModelConfig& config);

}  // namespace strata::cli
