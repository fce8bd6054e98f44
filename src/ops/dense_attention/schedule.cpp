#include "ops/dense_attention/schedule.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::ops {

std::vector<DenseDecodePlanner> make_dense_decode_planners() { return cuda::dense_decode_planners(); }

}  // namespace strata::ops
