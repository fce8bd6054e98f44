// The prologue and the epilogue of sparse_attn_decode as separate ops.
#pragma once

#include "strata/op.h"
#include "strata/ops/sparse_attention.h"

namespace strata::ops {

// `attention`, completed by the members that its kernels do not fuse.
Implementation<SparseAttnDecodeParams> with_decode_fusions(Implementation<SparseAttnDecodeParams> attention);

}  // namespace strata::ops
