// The rotation of sparse_attn_decode's results for implementations that do not take it back by themselves.
#pragma once

#include <vector>

#include "strata/op.h"
#include "strata/ops/rope.h"
#include "strata/ops/sparse_attention.h"

namespace strata::ops {

// Each of `attention` with the first of `rotations`, of the same backend, behind it where a call asks for it.
std::vector<Implementation<SparseAttnDecodeParams>> rotate_behind(std::vector<Implementation<SparseAttnDecodeParams>> attention,
                                                                  const std::vector<Implementation<InverseRopeParams>>& rotations);

}  // namespace strata::ops
