// The list of MLA's rotation and insertion.
#include "backends/cuda/mla/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<MlaRopeKvInsertParams>> mla_rope_kv_insert() { return {mla_rope_kv_insert_smxx()}; }

}  // namespace strata::cuda
