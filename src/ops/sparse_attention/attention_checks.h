// Shared checks of the attention ops.
#pragma once

#include "ops/indices/value_checks.h"

namespace strata::ops {

inline constexpr int64_t kMaxHeads = 128;

// Key rows of 512 (V4) or 576 (MLA) values.
constexpr bool is_sparse_head_dim(int64_t head_dim) { return head_dim == 512 || head_dim == 576; }

// 1..128 heads, key rows of which the first 1..D values are the value vector.
inline void check_head_shape(ParamCheck& c, int64_t num_heads, int64_t head_dim) {
  c.require(num_heads >= 1 && num_heads <= kMaxHeads, "q must have 1 to {} heads, has {}", kMaxHeads, num_heads);
  c.require(is_sparse_head_dim(head_dim), "q must have a head dimension of 512 or 576, has {}", head_dim);
}
inline void check_value_dim(ParamCheck& c, int64_t value_dim, int64_t head_dim) {
  c.require(value_dim >= 1 && value_dim <= head_dim, "out must have 1 to {} value dimensions, has {}", head_dim, value_dim);
}

// One raw logit per head; infinities are valid, NaN is not.
inline void check_sink(ParamCheck& c, const TensorView& attn_sink, int64_t num_heads) {
  c.optional("attn_sink", attn_sink, DType::f32, {num_heads});
  if (!host_visible(attn_sink)) return;
  for (int64_t h = 0; h < num_heads; ++h) {
    c.require(!std::isnan(attn_sink.ptr<float>()[h]), "attn_sink[{}] must be a number or an infinity, is NaN", h);
  }
}

}  // namespace strata::ops
