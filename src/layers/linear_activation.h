// The activations of linear layers: their format, FP8 beside FP8 weights (V4 5.2), bf16 otherwise, and a latent that several layers take.
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

// A latent after its norm as linear layers take it: bf16, or codes that are made once for all of them.
struct NormedLatent {
  TensorView values{};  // bf16 [T, K], or e4m3
  TensorView scale{};   // f32 [T, ceil(K / 128)], of codes
  ActivationFormat format = ActivationFormat::bf16;
};

// bf16: the norm is done in place of `raw` [T, K].
inline NormedLatent normed_latent(Arena& arena, const TensorView& raw, ActivationFormat format) {
  if (format == ActivationFormat::bf16) return {.values = raw};
  const int64_t tokens = raw.shape[0], k = raw.shape[1];
  return {arena.tensor(DType::e4m3, {tokens, k}), arena.tensor(DType::f32, {tokens, activation_blocks(k)}), format};
}

// The format of the codes that all of a latent's layers take; bf16 where they differ, and each quantises by itself.
inline ActivationFormat common_format(ActivationFormat a, ActivationFormat b) { return a == b ? a : ActivationFormat::bf16; }

}  // namespace strata
