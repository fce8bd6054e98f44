// The lists of the ops that insert and gather keys, fastest first.
#include "backends/cuda/kv_insert/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<QNormRopeKvInsertParams>> qnorm_rope_kv_insert() { return {qnorm_rope_kv_insert_smxx()}; }
std::vector<Implementation<QuantizeAndInsertKParams>> quantize_and_insert_k() { return {quantize_and_insert_k_smxx()}; }
std::vector<Implementation<DequantizeAndGatherKParams>> dequantize_and_gather_k() { return {dequantize_and_gather_k_smxx()}; }

}  // namespace strata::cuda
