// What a kernel is launched with. Host code alone, for .cpp files too; kernels of a known signature go by launch_early (early_launch.cuh).
#pragma once

#include <cuda_runtime_api.h>

namespace strata::cuda {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks
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
  }
  LaunchConfig(const LaunchConfig&) = delete;  // the configuration points to the attributes
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

}  // namespace strata::cuda
