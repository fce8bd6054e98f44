// Ops that run on the reference implementation for now: delete a line here when its implementation lands.
#include "backends/cpu/cpu_ops.h"

namespace strata::cpu {

std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode() { return {}; }
std::vector<Implementation<SparseAttnPrefillParams>> sparse_attn_prefill() { return {}; }
std::vector<Implementation<MergeAttnStatesParams>> merge_attn_states() { return {}; }

}  // namespace strata::cpu
