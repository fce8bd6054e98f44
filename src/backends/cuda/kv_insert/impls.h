// The implementations of the ops that insert and gather keys on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/kv_insert.h"

namespace strata::cuda {

// "cuda/smxx".
Implementation<QNormRopeKvInsertParams> qnorm_rope_kv_insert_smxx();
Implementation<QuantizeAndInsertKParams> quantize_and_insert_k_smxx();
Implementation<DequantizeAndGatherKParams> dequantize_and_gather_k_smxx();

}  // namespace strata::cuda
