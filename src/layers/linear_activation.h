// Which format the activations of a linear layer take: FP8 beside FP8 weights (V4 5.2), bf16 otherwise.
#pragma once

#include <string>

#include "checkpoint/load_weights.h"
#include "strata/attention.h"

namespace strata {

inline ActivationFormat linear_activation(const WeightLoader& loader, const std::string& name, const LayerOptions& options) {
  const StoredTensor* weight = loader.checkpoint.find(loader.layer, name + ".weight");
  if (weight == nullptr || weight->dtype != DType::e4m3 || !options.quantize_activations) return ActivationFormat::bf16;
  return loader.checkpoint.config().scale_ue8m0 ? ActivationFormat::fp8_ue8m0 : ActivationFormat::fp8_f32;
}

}  // namespace strata
