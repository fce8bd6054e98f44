// Multi-head attention of a run of queries of one request and one head over the request's keys in memory: MLA 7.
//
//   l[i, j] = softmax_scale * <q[i], concat(k_nope[j], k_pe[j])>,  j < visible(i)      out[i] = sum_j softmax(l[i])_j v[j]
//
// Numerics: as in attend.h. Keys are cut into blocks from the request's first key on, so a query's result depends neither on its task nor
// on the number of threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attend.h"

namespace strata::cpu {

struct PrefillShape {
  int nope = 0;    // dimensions of a key that belong to its head
  int rotary = 0;  // dimensions that all heads share
  int value = 0;
  float softmax_scale = 1.0f;
  bool causal = true;
  int max_queries = 0;  // of a task
  int head() const { return nope + rotary; }
};

// Rows of a head: bf16, `stride` elements apart.
struct HeadRows {
  const std::uint16_t* data = nullptr;
  std::int64_t stride = 0;
  const std::uint16_t* row(std::int64_t i) const { return data + i * stride; }
};

struct PrefillTask {
  HeadRows q, k_nope, k_pe, v;
  std::int64_t num_queries = 0;
  std::int64_t num_keys = 0;       // of the request
  std::int64_t first_visible = 0;  // number of keys that query 0 sees, when causal; below 1: none
  void* out = nullptr;             // bf16 or f32
  bool out_f32 = false;
  std::int64_t out_stride = 0;  // elements between queries
  float* lse = nullptr;         // or null; -inf where nothing is visible
  std::int64_t lse_stride = 0;

  std::int64_t visible(const PrefillShape& shape, std::int64_t query) const {
    return shape.causal ? std::clamp<std::int64_t>(first_visible + query, 0, num_keys) : num_keys;
  }
};

struct PrefillFunctions {
  std::size_t (*scratch_bytes)(const PrefillShape&);  // of a thread
  void (*run)(const PrefillShape&, const PrefillTask&, std::byte* scratch);
};

extern const PrefillFunctions kAmxPrefill;         // dims that are multiples of 32
extern const PrefillFunctions kAvx512Bf16Prefill;  // the same
extern const PrefillFunctions kAvx512Prefill;
extern const PrefillFunctions kAvx2Prefill;
extern const PrefillFunctions kPortablePrefill;

}  // namespace strata::cpu
