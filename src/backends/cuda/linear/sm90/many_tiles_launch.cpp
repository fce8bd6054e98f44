#include <algorithm>

#include "backends/cuda/linear/sm90/many_tiles.h"
#include "core/ceil_div.h"

namespace strata::cuda::sm90 {
namespace {

// Bytes of both teams' rings. When sharing the device fewer, so that a second such CTA or an indexer's CTA fits on an SM too. Alone this is
// up to a fifth slower; in a V4-Pro layer it is 6 us faster.
constexpr int kMaxRings = 192 << 10, kMaxRingsSharingDevice = 64 << 10;
constexpr int kMinStages = 2;

int64_t num_tiles(const LinearWeight& w) { return ceil_div(w.n, int64_t{kManyTilesRows}); }
int num_blocks(const LinearWeight& w) { return static_cast<int>(ceil_div(w.k, int64_t{kLinearBlock})); }

}  // namespace

bool many_tiles_fill(const LinearWeight& w, const Capabilities& device) { return num_tiles(w) > device.num_sms; }

int many_tiles_stages(const LinearWeight& w, int64_t tokens, bool shares_device, const Capabilities& device) {
  if (tokens > kManyTilesMaxTokens || w.block_n % kManyTilesRows != 0) return 0;
  const int left = device.max_shared_bytes - ManyTilesShared(token_product_rows(tokens), num_blocks(w), 0).bytes;
  const int with_stage = ManyTilesShared(8, 1, 1).bytes, without = ManyTilesShared(8, 1, 0).bytes;
  const int rings = shares_device ? kMaxRingsSharingDevice : kMaxRings;
  const int stages = std::min(left / (with_stage - without), rings / (kManyTilesTeams * kManyTilesStage));
  return stages < kMinStages ? 0 : stages;
}

void run_many_tiles(int stages, const TokenProduct& product, const Capabilities& device, cudaStream_t stream) {
  const ManyTilesArgs a{TokenProductArgs(product), static_cast<int>(num_tiles(product.weight)), stages};
  const int token_rows = token_product_rows(product.x.shape[0]);
  launch_token_product("many_tiles_kernel", many_tiles_kernel(token_rows),
                       {.grid = dim3(static_cast<unsigned>(std::min(a.num_tiles, device.num_sms))),
                        .block = dim3(kManyTilesThreads),
                        .shared_bytes = static_cast<size_t>(ManyTilesShared(token_rows, a.num_blocks, stages).bytes)},
                       TokenProductMaps(product, kManyTilesRows), a, device, stream);
}

}  // namespace strata::cuda::sm90
