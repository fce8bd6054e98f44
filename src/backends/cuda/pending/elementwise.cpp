// Ops without a CUDA implementation yet: a line here goes when its implementation lands.
#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<RmsNormPairParams>> rms_norm_pair() { return {}; }
std::vector<Implementation<QNormRopeKvInsertParams>> qnorm_rope_kv_insert() { return {}; }
std::vector<Implementation<QuantizeAndInsertKParams>> quantize_and_insert_k() { return {}; }
std::vector<Implementation<DequantizeAndGatherKParams>> dequantize_and_gather_k() { return {}; }
std::vector<Implementation<MergeAttnStatesParams>> merge_attn_states() { return {}; }
std::vector<Implementation<InverseRopeParams>> inverse_rope() { return {}; }
std::vector<Implementation<InverseRopeQuantParams>> inverse_rope_quant() { return {}; }
std::vector<Implementation<MlaRopeKvInsertParams>> mla_rope_kv_insert() { return {}; }

}  // namespace strata::cuda
