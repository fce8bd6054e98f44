// The implementations of MLA's rotation and insertion on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/mla.h"

namespace strata::cuda {

// "cuda/smxx".
Implementation<MlaRopeKvInsertParams> mla_rope_kv_insert_smxx();

}  // namespace strata::cuda
