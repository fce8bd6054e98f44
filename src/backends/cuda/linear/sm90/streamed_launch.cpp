#include <algorithm>

#include "backends/cuda/linear/product_output.h"
#include "backends/cuda/linear/sm90/streamed.h"
#include "core/ceil_div.h"

namespace strata::cuda::sm90 {
namespace {

constexpr int kMinStages = 4;
// Shared memory of a product that shares every SM with other work, and of large tiles on half of the SMs. Both leave room for a CTA of
// many_tiles.cu, of a product of the same tokens.
constexpr int kSharedBytesConcurrent = 112 << 10, kSharedBytesOfLargeTiles = 148 << 10;
// Cost of adding the partial sums of a cluster, in units of 128 bytes that a CTA loads in that time.
constexpr int64_t kSplitCost = 60;

// A plan on num_sms SMs with shared_bytes of shared memory each. Of one CTA per tile and two that share k (larger clusters do not fill the
// SMs), the one that loads less per CTA. Tokens, which are in L2, count half of their bytes.
std::optional<StreamedPlan> plan_on(int64_t num_sms, int shared_bytes, const LinearWeight& w, int64_t tokens) {
  const int64_t blocks = ceil_div(w.k, int64_t{kLinearBlock});
  const auto tiles_per_group = [&](int64_t rows) { return ceil_div(w.n, rows); };
  std::optional<StreamedPlan> best;
  int64_t best_cost = 0;
  for (const int split : {1, 2}) {
    const int64_t most_tiles = num_sms / split;
    int64_t rows = ceil_div(ceil_div(w.groups * w.n, most_tiles), int64_t{kStreamedRowStep}) * kStreamedRowStep;
    while (w.groups > 1 && w.groups * tiles_per_group(rows) > most_tiles && rows <= 2 * kLinearRows) rows += kStreamedRowStep;
    if (split > blocks || rows > 2 * kLinearRows) continue;
    const StreamedTile tile = streamed_tile(token_product_rows(tokens), rows > kLinearRows ? 2 : 1);
    const auto chunk = static_cast<int>(ceil_div(blocks, int64_t{split}));
    int stages = chunk;
    while (stages > 0 && StreamedShared(tile, static_cast<int>(rows), split, chunk, stages).bytes > shared_bytes) --stages;
    if (stages < chunk) stages = stages / tile.slices * tile.slices;
    if (stages < std::min(chunk, kMinStages)) continue;
    const int64_t cost = chunk * (rows + tile.tokens / 2) + kSplitCost * split;
    if (best && cost >= best_cost) continue;
    best = StreamedPlan{.tile = tile,
                        .tile_rows = static_cast<int>(rows),
                        .tiles_per_group = static_cast<int>(tiles_per_group(rows)),
                        .split = split,
                        .max_chunk = chunk,
                        .stages = stages};
    best_cost = cost;
  }
  return best;
}

}  // namespace

// When sharing the device a product uses half of the SMs, if these suffice. Work that starts at once on the other half does not wait for
// the last of these tiles, nor these tiles for that work (docs/kernels/decode_layer.md).
std::optional<StreamedPlan> plan_streamed(const LinearWeight& w, int64_t tokens, bool shares_device, const Capabilities& device) {
  if (!shares_device) return plan_on(device.num_sms, device.max_shared_bytes, w, tokens);
  const int half = device.num_sms / 2;
  auto plan = plan_on(half, device.max_shared_bytes, w, tokens);
  if (plan && plan->tile.row_tiles == 2) plan = plan_on(half, std::min(kSharedBytesOfLargeTiles, device.max_shared_bytes), w, tokens);
  return plan ? plan : plan_on(device.num_sms, kSharedBytesConcurrent, w, tokens);
}

void run_streamed(const StreamedPlan& plan, const TokenProduct& product, const Capabilities& device, cudaStream_t stream) {
  const StreamedShared shared(plan.tile, plan.tile_rows, plan.split, plan.max_chunk, plan.stages);
  const int in_flight = blocks_in_flight(plan.tile, kStreamedInFlight, plan.tile_rows * kLinearBlock, plan.stages);
  StreamedArgs a{TokenProductArgs(product), plan.tile_rows, plan.split, in_flight, plan.stages, plan.max_chunk};
  const bool quantized = product.y_scale.present();
  set_output_scales(a, product.y_scale, product.ue8m0);
  launch_token_product(
      "streamed_kernel", streamed_kernel(plan.tile, quantized),
      {.grid = dim3(static_cast<unsigned>(plan.tiles_per_group * plan.split), static_cast<unsigned>(product.weight.groups)),
       .block = dim3(static_cast<unsigned>(plan.tile.threads())),
       .shared_bytes = static_cast<size_t>(shared.bytes),
       .cluster = static_cast<unsigned>(plan.split)},
      TokenProductMaps(product, plan.tile_rows), a, device, stream);
}

}  // namespace strata::cuda::sm90
