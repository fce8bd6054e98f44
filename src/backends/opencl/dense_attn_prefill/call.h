// The argument of the kernel of dense_attn_prefill.clcpp, for host and device code.
#pragma once

#include <cstdint>

namespace strata::opencl {

inline constexpr int kPrefillItems = 256;
inline constexpr int kPrefillQueries = 64;   // per group
inline constexpr int kPrefillKeys = 64;      // per tile
inline constexpr int kPrefillColumns = 128;  // value columns per group

// The matrix kernel takes these dimensions only. Its groups have kPrefillRowGroups * kPrefillColumnGroups sub-groups.
inline constexpr int kPrefillNope = 128, kPrefillRotary = 64, kPrefillValue = 128;
inline constexpr int kPrefillRowGroups = 4, kPrefillColumnGroups = 4;

struct DenseAttnPrefillCall {
  uint64_t q, k_nope, k_pe, v, out, lse;               // lse may be 0: absent
  uint64_t query_start, key_start;                     // 0: absent
  int64_t q_token, q_head, k_token, k_head, pe_token;  // strides in elements
  int64_t v_token, v_head, out_token, out_head, lse_token;
  int64_t num_queries, num_keys;
  int32_t num_requests, slots;  // slots: tiles of kPrefillQueries queries of all requests (tile_of)
  int32_t nope, rotary, value;
  int32_t is_causal, is_out_f32;
  float scale;
};

}  // namespace strata::opencl
