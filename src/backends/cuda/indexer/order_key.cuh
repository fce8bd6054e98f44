// Logits as unsigned integers that compare in the same order.
#pragma once

#include <cstdint>

namespace strata::cuda {

// A logit as an ordered integer > 0. Both zeros are equal, and NaN is -inf, as in reference/topk_row.h.
__device__ __forceinline__ uint32_t order_key(float logit) {
  uint32_t bits = logit != logit ? 0xFF800000u : __float_as_uint(logit);
  if (logit == 0.0f) bits = 0;
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ __forceinline__ float logit_of(uint32_t key) { return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key); }

}  // namespace strata::cuda
