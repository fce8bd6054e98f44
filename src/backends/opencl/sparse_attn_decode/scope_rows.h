// The rows of a token in one or two paged caches.
#pragma once

#include "backends/opencl/attention/bf16_rows.h"
#include "backends/opencl/attention/call.h"

namespace strata::opencl {

// The entries of both scopes in order. Those of the second scope begin at first_extra.
struct ScopeRows {
  const SparseAttnDecodeCall& call;
  const __global int32_t* main;
  const __global int32_t* extra;
  int num_main, first_extra, num_all;

  int count() const { return num_all; }
  int index(int entry) const {
    if (entry < num_main) return main[entry];
    return entry >= first_extra && entry < num_all ? extra[entry - first_extra] : -1;
  }
  RowAddress address(int entry, int slot) const { return row_address(entry < num_main ? call.main.cache : call.extra.cache, slot); }
};

inline int length_of(const AttnScope& scope, uint32_t entry) {
  return scope.width == 0 || scope.lengths == 0 ? scope.width : at<const int32_t>(scope.lengths)[entry];
}
inline const __global int32_t* indices_of(const AttnScope& scope, uint32_t entry, uint32_t query) {
  return at<const int32_t>(scope.indices) + entry * scope.entry_stride + query * scope.token_stride;
}
// first_extra is a multiple of kAlignment, a power of two.
template <int kAlignment = 1>
inline ScopeRows rows_of(const SparseAttnDecodeCall& call, int64_t token) {
  const uint32_t queries = call.attention.queries, entry = (uint32_t)token / queries, query = (uint32_t)token % queries;
  const int num_main = length_of(call.main, entry), num_extra = length_of(call.extra, entry);
  const int first_extra = (num_main + kAlignment - 1) & -kAlignment;
  return {call, indices_of(call.main, entry, query), indices_of(call.extra, entry, query), num_main, first_extra, first_extra + num_extra};
}

}  // namespace strata::opencl
