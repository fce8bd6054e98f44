// The calls of one KV head that a call of dense_attn_decode with several KV heads stands for.
#pragma once

#include <cstddef>

#include "strata/ops/dense_attention.h"

namespace strata::ops {

// Entries [begin, begin + count) of dimension 1. A view without data stays so.
inline TensorView heads_of(TensorView view, int64_t begin, int64_t count) {
  view.shape[1] = count;
  if (view.data != nullptr)
    view.data = static_cast<std::byte*>(view.data) + begin * view.stride[1] * static_cast<int64_t>(size_of(view.dtype));
  return view;
}

// The call of KV head g, with num_kv_heads = 1. cache.row_dim becomes that of all KV heads of a slot, and cache.data the first row of g.
// Implementations therefore take rows that are the first D of cache.row_dim >= D values. Schedules are for all heads of a call, so there is
// none.
inline DenseAttnDecodeParams kv_head_call(const DenseAttnDecodeParams& p, int64_t g) {
  DenseAttnDecodeParams head = p;
  const int64_t heads = p.q.shape[1] / p.num_kv_heads;
  head.q = heads_of(p.q, g * heads, heads);
  head.out = heads_of(p.out, g * heads, heads);
  if (p.lse.present()) head.lse = heads_of(p.lse, g * heads, heads);
  if (p.cache.data != nullptr) {
    head.cache.data = static_cast<std::byte*>(p.cache.data) + g * row_data_bytes(p.cache.format, p.cache.row_dim);
  }
  head.cache.row_dim = p.cache.row_dim * p.num_kv_heads;
  head.num_kv_heads = 1;
  head.schedule = {};
  return head;
}

}  // namespace strata::ops
