// Quantises a block of 128 activations, eight per item: quantize_activation of formats/quantize.h.
#pragma once

#include "backends/opencl/device/convert.h"
#include "formats/quantize.h"

namespace strata::opencl {

constexpr int kBlockItems = kActivationBlock / 8;

// An item's eight values as e4m3, and the block's scale.
struct QuantizedRun {
  uint2 quantized;
  float scale;
};
// largest: the largest magnitude of each item of the block, at a multiple of 16 bytes.
inline QuantizedRun quantize_run(const float* values, bool is_ue8m0, const __local float* largest) {
  const float top = largest_of<kBlockItems>(largest, kActivationAmaxFloor);
  if (is_ue8m0) {
    const int exponent = block_exponent(top);
    return {e4m3_run(values, pow2(-exponent)), e8m0_value(to_e8m0(exponent).bits)};
  }
  const float scale = top / kE4m3Max;
  float quotients[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) quotients[i] = values[i] / scale;
  return {e4m3_run(quotients, 1.0f), scale};
}

}  // namespace strata::opencl
