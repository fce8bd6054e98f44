// The arguments of the MLA kernels, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/cache_view.h"

namespace strata::opencl {

// One item per run. The runs of a token are those of its heads, then those of its rotary key.
inline constexpr int kMlaRopeItems = 64;

struct MlaRopeCall {
  uint64_t q, k_pe, q_pe_out;
  uint64_t positions, cos_sin;  // 0: no rotation
  uint64_t scaling;             // 0: none
  int64_t q_stride[2], k_pe_stride, q_pe_out_stride[2], cos_sin_stride;
  int64_t num_q_pe_out;
  int32_t groups;  // per token
  int32_t heads, nope, rotary;
  int32_t nope_runs;  // per head; 0 if the dimensions that are not rotary stay unchanged
  int32_t runs;       // per head
};

// A row of at most 128 values has 16 items, one of at most 512 values a whole group.
inline constexpr int kKeyItems = 64, kNarrowKeyItems = 16;

struct IndexerKeyCall {
  uint64_t k, weight, bias, slots;
  uint64_t positions, cos_sin;  // 0: no rotation
  int64_t k_stride, cos_sin_stride, num_slots;
  CacheView cache;
  int32_t first_rotary, rotary, is_half_split;
  float eps;
  float hadamard_scale;  // 1 / sqrt(row dimension); 0: no Hadamard rotation
};

}  // namespace strata::opencl
