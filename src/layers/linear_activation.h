// The activations of linear layers. Their format: FP8 with FP8 weights (V4 5.2), otherwise bf16. A latent that several layers read.
#pragma once

#include <string>

#include "weights/load_weights.h"
#include "core/arena.h"
#include "formats/quantize.h"
#include "strata/attention.h"

namespace strata {

inline ActivationFormat linear_activation(const WeightLoader& loader, const std::string& name, const LayerOptions& options) {
  const StoredTensor* weight = loader.checkpoint.find(loader.layer, name + ".weight");
  if (weight == nullptr || weight->dtype != DType::e4m3 || !options.quantize_activations) return ActivationFormat::bf16;
  return loader.checkpoint.config().scale_ue8m0 ? ActivationFormat::fp8_ue8m0 : ActivationFormat::fp8_f32;
}

// A normalised latent as linear layers take it: bf16, or quantised once for all of them.
struct NormedLatent {
  TensorView values{};  // bf16 [T, K], or e4m3
  TensorView scale{};   // of e4m3 values: f32 [T, ceil(K / 128)]
  ActivationFormat format = ActivationFormat::bf16;
};

// bf16: `raw` [T, K] is normalised in place.
inline NormedLatent normed_latent(Arena& arena, const TensorView& raw, ActivationFormat format) {
  if (format == ActivationFormat::bf16) return {.values = raw};
  const int64_t tokens = raw.shape[0], k = raw.shape[1];
  return {arena.tensor(DType::e4m3, {tokens, k}), arena.tensor(DType::f32, {tokens, activation_blocks(k)}), format};
}

// The FP8 format if all layers that read a latent take the same one; bf16 if they differ, and each quantises for itself.
inline ActivationFormat common_format(ActivationFormat a, ActivationFormat b) { return a == b ? a : ActivationFormat::bf16; }

}  // namespace strata
