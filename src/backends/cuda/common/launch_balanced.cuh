// Clusters with their blocks on SMs of their own. By default, where several blocks fit on an SM, the hardware puts those of a cluster
// together and leaves other SMs empty: of 33 clusters of four on an H200, 60 SMs with two blocks and 60 with none.
#pragma once

#include <algorithm>

#include "backends/cuda/common/early_launch.cuh"

namespace strata::cuda {

// As launch_early.
template <class... Params, class... Args>
void launch_balanced(const char* name, void (*kernel)(Params...), const LaunchShape& shape, const ExecutionContext& context,
                     Args&&... args) {
  const LaunchConfig early(shape, native(context.stream), launches_early(context.device));
  cudaLaunchConfig_t config = *early.get();
  cudaLaunchAttribute attributes[3]{};
  std::copy_n(config.attrs, config.numAttrs, attributes);
  attributes[config.numAttrs].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
  attributes[config.numAttrs++].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
  config.attrs = attributes;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

}  // namespace strata::cuda
