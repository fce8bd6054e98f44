// Loads of queries and stores of results for the attention kernels over shared rows.
#pragma once

#include <cstdint>

#include "backends/opencl/attention/bf16_rows.h"
#include "backends/opencl/attention/call.h"

namespace strata::opencl {

inline int64_t offset_of(const RowAttention& a, const TokenStride& stride, int64_t token, int head) {
  const uint32_t queries = a.queries;
  return (uint32_t)token / queries * stride.entry + (uint32_t)token % queries * stride.token + head * stride.head;
}

// Values [column, column + 8) of a query; 0 from head_dim on.
inline uint4 load_query(const __global uint16_t* q, int column, int head_dim, bool is_aligned) {
  if (is_aligned && column + kRun <= head_dim) return *(const __global uint4*)(q + column);
  return load_few(q + column, min(kRun, head_dim - column));
}

// Stores eight columns of a head's result, sums * factor.
inline void store_result(const RowAttention& a, __global uint16_t* to, int column, const float* sums, float factor) {
  uint16_t bits[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) bits[i] = to_bf16(sums[i] * factor).bits;
  if (column + kRun <= a.value_dim) return store8(to, a.is_out_aligned, bits);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (column + i < a.value_dim) to[i] = bits[i];
  }
}
inline void store_statistics(const RowAttention& a, int64_t token, int head, float largest, float total) {
  if (a.lse != 0) at<float>(a.lse)[offset_of(a, a.lse_stride, token, head)] = total == 0.0f ? INFINITY : largest + log(total);
  if (a.max_logits != 0) at<float>(a.max_logits)[offset_of(a, a.max_stride, token, head)] = largest;
}
// The factor that normalises the sums. The sink counts as one more logit, whose value is zero. 0 without rows.
inline float factor_of(const RowAttention& a, int head, float largest, float total) {
  if (total == 0.0f) return 0.0f;
  return 1.0f / (a.sink == 0 ? total : total + exp(at<const float>(a.sink)[head] - largest));
}

}  // namespace strata::opencl
