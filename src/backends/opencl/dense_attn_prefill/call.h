// The argument of the kernel of dense_attn_prefill.clcpp, for host and device code.
#pragma once

#include <cstdint>

namespace strata::opencl {

inline constexpr int kPrefillItems = 256;
inline constexpr int kPrefillQueries = 64;   // of a group
inline constexpr int kPrefillKeys = 64;      // of a tile
inline constexpr int kPrefillColumns = 128;  // of the values that a group has

// On the matrix engine, of these dimensions alone, a group has kPrefillRowGroups * kPrefillColumnGroups sub-groups.
inline constexpr int kPrefillNope = 128, kPrefillRotary = 64, kPrefillValue = 128;
inline constexpr int kPrefillRowGroups = 4, kPrefillColumnGroups = 4;

struct DenseAttnPrefillCall {
  uint64_t q, k_nope, k_pe, v, out, lse;               // lse: 0 where absent
  uint64_t query_start, key_start;                     // 0 where absent
  int64_t q_token, q_head, k_token, k_head, pe_token;  // strides in elements
  int64_t v_token, v_head, out_token, out_head, lse_token;
  int64_t num_queries, num_keys;
  int32_t num_requests, slots;  // slots of kPrefillQueries queries, of all requests
  int32_t nope, rotary, value;
  int32_t is_causal, is_out_f32;
  float scale;
};

}  // namespace strata::opencl
