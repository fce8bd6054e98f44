#include "backends/cuda/dense_attn_decode/sm90/instantiate.cuh"

namespace strata::cuda::dense_decode {

template void launch_work_ranges<true, false, Shares::by_lengths>(const WorkRangeArgs&, const ExecutionContext&);

}  // namespace strata::cuda::dense_decode
