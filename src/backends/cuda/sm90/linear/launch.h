// Launches the kernel of kernel.cu; what a call looks like is decided here.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "backends/cuda/common/cuda_device.h"
#include "backends/cuda/sm90/linear/config.h"
#include "strata/ops/linear.h"

namespace strata::cuda::sm90 {

// One product for at most kLinearMaxTokens tokens.
struct LinearCall {
  TensorView x;        // e4m3 [T, G, K], any strides between tokens and groups
  TensorView x_scale;  // f32 [T, G, ceil(K / 128)], the last dimension contiguous
  const LinearWeight& weight;
  TensorView y;        // [T, G, n], bf16 or f32
  bool shares_device;  // leave other kernels room on the SMs
};

// The reason why the kernel cannot take a row-major e4m3 weight and so many tokens, kLinearMaxTokens at most; empty when it can.
std::string refusal(const LinearWeight& weight, int64_t tokens, const Capabilities& device);

// How a product is cut.
struct LinearPlan {
  LinearTile tile;
  int split;     // CTAs of a cluster, each with a part of k
  int clusters;  // each with some of the tiles
  int stages;    // of the ring; 0 when this cut does not fit
};

class LinearLauncher {
 public:
  void run(const LinearCall& call, const Device& device, cudaStream_t stream);

 private:
  LinearPlan plan(const LinearCall& call, const Device& device);
  // How many clusters of this size the device runs at once: not every GPC has a multiple of 4 or 8 SMs.
  int max_clusters(int split, const Device& device);

  std::mutex mutex_;
  std::map<std::pair<int, int>, int> max_clusters_;  // by device and size
};

}  // namespace strata::cuda::sm90
