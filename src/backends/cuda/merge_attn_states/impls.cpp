// The list of merge_attn_states.
#include "backends/cuda/merge_attn_states/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<MergeAttnStatesParams>> merge_attn_states() { return {merge_attn_states_smxx()}; }

}  // namespace strata::cuda
