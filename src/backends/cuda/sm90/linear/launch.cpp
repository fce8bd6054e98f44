#include "backends/cuda/sm90/linear/launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "backends/cuda/common/check.h"
#include "backends/cuda/common/launch_config.h"
#include "backends/cuda/common/product_output.h"
#include "backends/cuda/sm90/linear/tensor_map.h"
#include "backends/cuda/sm90/linear/token_product.h"
#include "core/ceil_div.h"
#include "core/check.h"

namespace strata::cuda::sm90 {
namespace {

constexpr int kSplits[] = {1, 2, 4, 8};
constexpr int kMinRing = 48 << 10;

int num_blocks(int64_t k) { return static_cast<int>(ceil_div(k, kLinearBlock)); }

// Stages, an even number, of a ring of `ring` bytes at most that fit beside everything else when k is cut in `split` parts; 0 when too few
// do.
int stages_for(const LinearTile& tile, int split, int blocks, int ring, const Capabilities& device) {
  if (split > blocks) return 0;
  const auto chunk = static_cast<int>(ceil_div(blocks, split));
  const int left = device.max_shared_bytes - LinearShared(tile, chunk, 0).bytes;
  const int stages = std::min(left / (tile.stage_bytes() + 20), ring / tile.stage_bytes()) / 2 * 2;
  return stages * tile.stage_bytes() >= std::min(kMinRing, ring) ? stages : 0;
}

// A cluster's time in units of one block of k of 64 rows (0.25 us on an H200 at full bandwidth): its tiles times its part of k and what it
// costs to add the partial sums of a tile, and what larger clusters take to start. Fitted to measurements
// (docs/kernels/20261121-few-token-linear.md).
double cost(const LinearPlan& plan, int blocks, int64_t tiles) {
  const double block = plan.tile.parts, epilogue = plan.split == 1 ? 1 : 3 + plan.split / 2;
  return static_cast<double>(ceil_div(tiles, plan.clusters)) * (static_cast<double>(ceil_div(blocks, plan.split)) * block + epilogue) +
         2 * plan.split;
}

LaunchShape launch_shape(int split, int clusters, int shared_bytes) {
  return {.grid = dim3(static_cast<unsigned>(split * clusters)),
          .block = dim3(kLinearThreads),
          .shared_bytes = static_cast<size_t>(shared_bytes),
          .cluster = static_cast<unsigned>(split)};
}

}  // namespace

std::string refusal(const LinearWeight& w, int64_t tokens, const Capabilities& device) {
  if (w.k % 16 != 0) return fmt::format("needs a multiple of 16 input features, got {}", w.k);
  if (w.block_k != kLinearBlock || w.block_n % kLinearRows != 0) {
    return fmt::format("needs weight scales of (a multiple of {}) x {} blocks, has {} x {}", kLinearRows, kLinearBlock, w.block_n,
                       w.block_k);
  }
  if (w.groups > 1 && w.n % kLinearRows != 0) {
    return fmt::format("groups must be a multiple of {} rows, have {}", kLinearRows, w.n);
  }
  const LinearTile tile{token_product_rows(tokens), 1};
  const bool fits = std::ranges::any_of(kSplits, [&](int split) { return stages_for(tile, split, num_blocks(w.k), kMinRing, device) > 0; });
  return fits ? "" : fmt::format("{} tokens of {} input features do not fit in shared memory", tokens, w.k);
}

int LinearLauncher::max_clusters(int split, const Device& device) {
  const std::lock_guard lock(mutex_);
  int& clusters = max_clusters_[{device.id().index, split}];
  if (clusters > 0) return clusters;
  const Capabilities& c = capabilities(device);
  if (split == 1) return clusters = c.num_sms;  // a block with all the shared memory has an SM of its own
  constexpr LinearTile tile{8, 1};
  const void* kernel = linear_kernel(tile);
  allow_shared_bytes(kernel, static_cast<size_t>(c.max_shared_bytes));
  const LaunchConfig config(launch_shape(split, c.num_sms, c.max_shared_bytes), nullptr, /*early=*/true);
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, config.get()), "cudaOccupancyMaxActiveClusters");
  return clusters = std::max(clusters, 1);
}

LinearPlan LinearLauncher::plan(const LinearCall& call, const Device& device) {
  const LinearWeight& w = call.weight;
  const int blocks = num_blocks(w.k), ring = call.shares_device ? kLinearSharedRing : kLinearMaxRing;
  LinearPlan best{};
  double best_cost = 0;
  for (const int parts : {1, 2}) {
    const LinearTile tile{token_product_rows(call.x.shape[0]), parts};
    if (parts == 2 && tile.tokens > 32) continue;
    const int rows = tile.rows();
    if (w.block_n % rows != 0 || (w.groups > 1 && w.n % rows != 0)) continue;
    const int64_t tiles = ceil_div(w.n, rows) * w.groups;
    for (const int split : kSplits) {
      const LinearPlan plan{.tile = tile,
                            .split = split,
                            .clusters = static_cast<int>(std::min<int64_t>(max_clusters(split, device), tiles)),
                            .stages = stages_for(tile, split, blocks, ring, capabilities(device))};
      if (parts == 2 && split > 1) continue;  // smaller tiles are a better load for clusters
      if (plan.stages == 0 || (best.stages > 0 && cost(plan, blocks, tiles) >= best_cost)) continue;
      best_cost = cost(plan, blocks, tiles);
      best = plan;
    }
  }
  return best;
}

void LinearLauncher::run(const LinearCall& call, const Device& device, cudaStream_t stream) {
  const LinearPlan plan = this->plan(call, device);
  const LinearTile& tile = plan.tile;
  const int rows = tile.rows();
  const int64_t groups = call.x.shape[1], k = call.x.shape[2], n = call.y.shape[2];
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
  a.num_tokens = static_cast<int>(call.x.shape[0]);
  a.n = static_cast<int>(n);
  a.k = static_cast<int>(k);
  a.tiles_per_group = static_cast<int>(ceil_div(n, rows));
  a.num_tiles = static_cast<int>(a.tiles_per_group * groups);
  a.num_blocks = num_blocks(k);
  a.split = plan.split;
  a.max_chunk = static_cast<int>(ceil_div(a.num_blocks, a.split));
  a.stages = plan.stages;

  const CUtensorMap weights = tensor_map("weight", call.weight.weight.data, DType::e4m3, groups * n, k, k, rows);
  const void* kernel = linear_kernel(tile);
  const int shared_bytes = LinearShared(tile, a.max_chunk, a.stages).bytes;
  allow_shared_bytes(kernel, static_cast<size_t>(capabilities(device).max_shared_bytes));
  const LaunchConfig config(launch_shape(a.split, plan.clusters, shared_bytes), stream, /*early=*/true);
  void* arguments[] = {const_cast<CUtensorMap*>(&weights), &a};
  check(cudaLaunchKernelExC(config.get(), kernel, arguments), "few_tokens_kernel");
}

}  // namespace strata::cuda::sm90
