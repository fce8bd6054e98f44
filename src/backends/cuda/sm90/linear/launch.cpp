#include "backends/cuda/sm90/linear/launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "backends/cuda/common/check.h"
#include "backends/cuda/common/grid.h"
#include "backends/cuda/common/product_output.h"
#include "backends/cuda/sm90/linear/tensor_map.h"
#include "core/check.h"

namespace strata::cuda::sm90 {
namespace {

constexpr int kSplits[] = {1, 2, 4, 8};
constexpr int kMinStages = 6;  // 48 KB in flight per SM

int token_rows(int64_t tokens) { return tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64; }

int num_blocks(int64_t k) { return static_cast<int>(ceil_div(k, kLinearBlock)); }

// Stages, `most` at most, that fit beside everything else when k is cut in `split` parts; below kMinStages the cut is not possible.
int stages_for(int split, int blocks, int rows, int most, const Capabilities& device) {
  const auto chunk = static_cast<int>(ceil_div(blocks, split));
  if (split > blocks) return 0;
  const int left = device.max_shared_bytes - LinearShared(rows, chunk, 0).bytes;
  return std::clamp(left / (kLinearStageBytes + 20), 0, most) / 2 * 2;
}

// A cluster's time in units of one block of k (0.26 us on an H200 at full bandwidth): its tiles times its part of k and what it costs to
// add the partial sums of a tile, and what larger clusters take to start. Fitted to measurements
// (docs/kernels/20261121-few-token-linear.md).
int64_t cost(int split, int blocks, int tiles, int clusters) {
  const int64_t epilogue = split == 1 ? 1 : 3 + split / 2;
  return ceil_div(tiles, clusters) * (ceil_div(blocks, split) + epilogue) + 2 * split;
}

cudaLaunchConfig_t launch_config(int split, int clusters, int shared_bytes, cudaStream_t stream, cudaLaunchAttribute (&attributes)[2]) {
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(split), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(split * clusters));
  config.blockDim = dim3(kLinearThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return config;
}

}  // namespace

std::string refusal(const LinearWeight& w, int64_t tokens, const Capabilities& device) {
  if (w.k % 16 != 0) return fmt::format("needs a multiple of 16 input features, got {}", w.k);
  if (w.block_k != kLinearBlock || w.block_n % kLinearTileRows != 0) {
    return fmt::format("needs weight scales of (a multiple of {}) x {} blocks, has {} x {}", kLinearTileRows, kLinearBlock, w.block_n,
                       w.block_k);
  }
  if (w.groups > 1 && w.n % kLinearTileRows != 0) {
    return fmt::format("groups must be a multiple of {} rows, have {}", kLinearTileRows, w.n);
  }
  const int rows = token_rows(tokens), blocks = num_blocks(w.k);
  const bool fits =
      std::ranges::any_of(kSplits, [&](int split) { return stages_for(split, blocks, rows, kMinStages, device) >= kMinStages; });
  return fits ? "" : fmt::format("{} tokens of {} input features do not fit in shared memory", tokens, w.k);
}

int LinearLauncher::max_clusters(int split, const Device& device) {
  const std::lock_guard lock(mutex_);
  int& clusters = max_clusters_[{device.id().index, split}];
  if (clusters > 0) return clusters;
  const Capabilities& c = capabilities(device);
  const void* kernel = linear_kernel(8);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, c.max_shared_bytes), "cudaFuncSetAttribute");
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config = launch_config(split, c.num_sms, c.max_shared_bytes, nullptr, attributes);
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cudaOccupancyMaxActiveClusters");
  return clusters = std::max(clusters, 1);
}

void LinearLauncher::run(const LinearCall& call, const Device& device, cudaStream_t stream) {
  const int64_t tokens = call.x.shape[0], groups = call.x.shape[1], k = call.x.shape[2], n = call.y.shape[2];
  const int rows = token_rows(tokens), blocks = num_blocks(k);

  LinearArgs a{};
  a.x = call.x.ptr<uint8_t>();
  a.x_stride = call.x.stride[0];
  a.x_group = call.x.stride[1];
  a.x_aligned = reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && a.x_stride % 16 == 0 && a.x_group % 16 == 0;
  a.x_scale = call.x_scale.ptr<float>();
  a.x_scale_stride = call.x_scale.stride[0];
  a.x_scale_group = call.x_scale.stride[1];
  a.w_scale = call.weight.scale.ptr<float>();
  a.w_scale_stride = call.weight.scale.stride[0];
  a.weight_block_rows = static_cast<int>(call.weight.block_n);
  set_output(a, call.y);
  a.num_tokens = static_cast<int>(tokens);
  a.n = static_cast<int>(n);
  a.k = static_cast<int>(k);
  a.tiles_per_group = static_cast<int>(ceil_div(n, kLinearTileRows));
  a.num_tiles = static_cast<int>(a.tiles_per_group * groups);
  a.num_blocks = blocks;

  const int most_stages = call.shares_device ? kLinearSharedStages : kLinearMaxStages;
  int clusters = 0;
  int64_t best = 0;
  for (const int split : kSplits) {
    const int stages = stages_for(split, blocks, rows, most_stages, capabilities(device));
    if (stages < kMinStages) continue;
    const int count = std::min(max_clusters(split, device), a.num_tiles);
    const int64_t this_cost = cost(split, blocks, a.num_tiles, count);
    if (clusters > 0 && this_cost >= best) continue;
    best = this_cost;
    clusters = count;
    a.split = split;
    a.max_chunk = static_cast<int>(ceil_div(blocks, split));
    a.stages = stages;
  }

  const CUtensorMap weights = tensor_map("weight", call.weight.weight.data, DType::e4m3, groups * n, k, k, kLinearTileRows);
  const void* kernel = linear_kernel(rows);
  const int shared_bytes = LinearShared(rows, a.max_chunk, a.stages).bytes;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), "cudaFuncSetAttribute");
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config = launch_config(a.split, clusters, shared_bytes, stream, attributes);
  void* arguments[] = {const_cast<CUtensorMap*>(&weights), &a};
  check(cudaLaunchKernelExC(&config, kernel, arguments), "few_tokens_kernel");
}

}  // namespace strata::cuda::sm90
