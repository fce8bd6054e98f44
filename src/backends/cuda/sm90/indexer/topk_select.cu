// Top-k of rows of logits with a cluster of blocks for each row where the rows alone would leave SMs idle. The algorithm: select.cuh.
// Each block samples the whole row, so that all have one bound, and collects from its segment; the cluster's first block has the rest.
#include <cooperative_groups.h>

#include <algorithm>

#include "backends/cuda/common/check.h"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/sm90/indexer/indexer.h"
#include "backends/cuda/smxx/indexer/select.cuh"

namespace strata::cuda {
namespace {

constexpr int kMaxCluster = 8;     // the largest that every device with clusters has
constexpr int kMinSegment = 8192;  // entries that are worth a block of their own

struct ClusterOfBlocks {
  static constexpr bool kOne = false;
  __device__ int rank() const { return static_cast<int>(cooperative_groups::this_cluster().block_rank()); }
  __device__ int size() const { return static_cast<int>(cooperative_groups::this_cluster().num_blocks()); }
  __device__ void sync() const { cooperative_groups::this_cluster().sync(); }
  template <class T>
  __device__ T* at(T* shared, int rank) const {
    return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
  }
};

template <class Group, int kThreads>
__global__ void __launch_bounds__(kThreads, kSelectBlocks<kThreads>) topk_select_kernel(const SelectArgs a) {
  __shared__ SelectShared<kThreads> shared;
  ptx::wait_for_previous_kernel();
  const Group group;
  select_row(group, shared, a, blockIdx.x / group.size());
}

// Blocks for a row: a power of two.
int cluster_size(const TopkSelectParams& p, int num_sms) {
  const int64_t num_tokens = p.lengths.shape[0];
  const int64_t columns = p.logits.present() ? p.logits.shape[1] : 0;
  int size = 1;
  while (size < kMaxCluster && num_tokens * size * 2 <= num_sms && columns >= int64_t{size} * 2 * kMinSegment) size *= 2;
  return columns <= int64_t{size} * SelectShared<512>::kSegment ? size : 1;
}

}  // namespace

void sm90::launch_topk_select(const TopkSelectParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.lengths.shape[0];
  if (num_tokens == 0) return;
  const int num_sms = capabilities(context.device).num_sms, size = cluster_size(p, num_sms), threads = select_threads(p, num_sms);
  // The kernel in front (the logits, usually) may still run while the blocks of this one start.
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(size), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_tokens * size));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = native(context.stream);
  config.attrs = attributes;
  config.numAttrs = size == 1 ? 1 : 2;
  const auto kernel = size > 1         ? topk_select_kernel<ClusterOfBlocks, 512>  // few rows
                      : threads == 512 ? topk_select_kernel<SingleBlock, 512>
                      : threads == 256 ? topk_select_kernel<SingleBlock, 256>
                                       : topk_select_kernel<SingleBlock, 128>;
  check(cudaLaunchKernelEx(&config, kernel, select_args(p)), "topk_select");
}

}  // namespace strata::cuda
