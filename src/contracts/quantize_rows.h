// Rows quantised as linear quantises its activations: the epilogue of grouped_linear where its result is e4m3.
#pragma once

#include "strata/activation_format.h"
#include "strata/tensor.h"

namespace strata::ops {

// All contiguous; K is a multiple of 128.
struct QuantizeRowsParams {
  TensorView x{};  // bf16 [T, K]
  ActivationFormat format = ActivationFormat::fp8_ue8m0;
  TensorView values{};  // e4m3 [T, K]
  TensorView scale{};   // f32 [T, K / 128]
};

}  // namespace strata::ops
