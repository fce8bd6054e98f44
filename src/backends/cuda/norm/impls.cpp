// The list of the norms.
#include "backends/cuda/norm/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<RmsNormPairParams>> rms_norm_pair() { return {rms_norm_pair_smxx()}; }

}  // namespace strata::cuda
