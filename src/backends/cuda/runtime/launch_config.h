// What a kernel is launched with. Host code alone, for .cpp files too; kernels of a known signature go by launch_early (early_launch.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/runtime/check.h"

namespace strata::cuda {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks
  // The blocks of a cluster on SMs of their own. By default, where several fit on an SM, the hardware puts those of a cluster together and
  // leaves other SMs empty: of 33 clusters of four on an H200, 60 SMs with two blocks and 60 with none.
  bool spread = false;
};

// early: the kernel may begin beside the one in front of it in the stream, and waits for that by itself.
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

// Lets blocks of the kernel have this much dynamic shared memory. Of launches that differ, the most that any of them asks for: another
// thread may be launching the same kernel with more.
template <class Kernel>
void allow_shared_bytes(Kernel* kernel, size_t bytes) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
}

// SMs are set up with all the shared memory they have for blocks of this kernel, not with what these need, so that blocks of other kernels
// find their place beside them: an SM is set up anew only when it is empty.
template <class Kernel>
void all_shared_memory(Kernel* kernel) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute");
}

}  // namespace strata::cuda
