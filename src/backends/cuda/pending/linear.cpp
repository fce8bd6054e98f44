// Ops without a CUDA implementation yet: a line here goes when its implementation lands.
#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<LinearParams>> linear() { return {}; }
std::vector<Implementation<GroupedLinearParams>> grouped_linear() { return {}; }
std::vector<WeightPacking> weight_packings() { return {}; }

}  // namespace strata::cuda
