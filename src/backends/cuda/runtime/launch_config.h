// Launch attributes of a kernel. Host code only, for .cpp files too; kernels of a known signature use launch_early (early_launch.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/runtime/check.h"

namespace strata::cuda {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // CTAs
  // Places the CTAs of a cluster on different SMs. By default, where several fit on an SM, the hardware puts CTAs of a cluster together and
  // leaves other SMs empty: with 33 clusters of four on an H200, 60 SMs have two CTAs and 60 none.
  bool spread = false;
};

// early: the kernel may start while the preceding kernel of the stream runs, and waits for it by itself.
class LaunchConfig {
 public:
  LaunchConfig(const LaunchShape& shape, cudaStream_t stream, bool early) {
    config_.gridDim = shape.grid;
    config_.blockDim = shape.block;
    config_.dynamicSmemBytes = shape.shared_bytes;
    config_.stream = stream;
    config_.attrs = attributes_;
    if (early) {
      cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster > 1) {
      cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {shape.cluster, 1, 1};
    }
    if (shape.spread) {
      cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
      attribute.val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;  // the configuration points to the attributes
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchAttribute attributes_[3]{};
  cudaLaunchConfig_t config_{};
};

// Allows CTAs of the kernel this much dynamic shared memory. Launches that differ use their maximum, because another thread may be
// launching the same kernel with more.
template <class Kernel>
void allow_shared_bytes(Kernel* kernel, size_t bytes) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
}

// Configures SMs with all their shared memory for this kernel, not only what its CTAs need, so that CTAs of other kernels fit on the SM
// too: an SM is reconfigured only when it is empty.
template <class Kernel>
void all_shared_memory(Kernel* kernel) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute");
}

}  // namespace strata::cuda
