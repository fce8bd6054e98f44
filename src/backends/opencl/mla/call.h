// The arguments of the kernels of mla, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/cache_view.h"

namespace strata::opencl {

// A run of a token's heads, then of its rotary key, an item.
inline constexpr int kMlaRopeItems = 64;

struct MlaRopeCall {
  uint64_t q, k_pe, q_pe_out;
  uint64_t positions, cos_sin;  // 0: no rotation
  uint64_t scaling;             // 0: none
  int64_t q_stride[2], k_pe_stride, q_pe_out_stride[2], cos_sin_stride;
  int64_t num_q_pe_out;
  int32_t groups;  // of a token
  int32_t heads, nope, rotary;
  int32_t nope_runs;  // of a head: 0 where the other lanes stay as they are
  int32_t runs;       // of a head
};

// A row has 16 items and at most 128 values, or a group and at most 512.
inline constexpr int kKeyItems = 64, kNarrowKeyItems = 16;

struct IndexerKeyCall {
  uint64_t k, weight, bias, slots;
  uint64_t positions, cos_sin;  // 0: no rotation
  int64_t k_stride, cos_sin_stride, num_slots;
  CacheView cache;
  int32_t first_rotary, rotary, is_half_split;
  float eps;
  float hadamard_scale;  // 1 / sqrt(values of a row); 0: no Hadamard rotation
};

}  // namespace strata::opencl
