#include "ops/sparse_attention/schedule.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::ops {

std::vector<SparseDecodePlanner> make_sparse_decode_planners() { return cuda::sparse_decode_planners(); }

}  // namespace strata::ops
