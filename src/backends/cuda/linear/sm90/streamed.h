// An FP8 linear layer for few tokens on Hopper whose tiles are all in flight at once: definitions shared by host code and the kernel.
#pragma once

#include <algorithm>
#include <optional>

#include "backends/cuda/linear/sm90/token_product.h"
#include "formats/quantize.h"

namespace strata::cuda::sm90 {

// Tiles have a multiple of this many rows: the rows of a warp in wgmma, which then share one weight scale.
inline constexpr int kStreamedRowStep = 16;
// Most scale blocks of at least 64 rows that a tile of 128 can touch.
inline constexpr int kStreamedScaleRows = 3;

// Compile-time parameters: rows of tokens (8, 16, 32, 64 or 128); groups of 64 features, 1 or 2, of which the last may be partly filled;
// warpgroups; slices: the number of warpgroups with the same features, which take the blocks of k alternately.
struct StreamedTile {
  int tokens, row_tiles, warpgroups, slices;
  constexpr int consumers() const { return 128 * warpgroups; }  // threads that multiply
  constexpr int threads() const { return consumers() + 64; }    // plus a warp that loads weights, and one that loads tokens
  // Floats of a token's partial sums; 4 more against bank conflicts.
  constexpr int partial_stride() const { return row_tiles * kLinearRows + 4; }
  constexpr int partial_bytes() const { return slices * tokens * partial_stride() * 4; }
  // Bytes of sums that the other CTA of a pair sends: those of half of the tokens.
  constexpr int sent_bytes() const { return tokens / 2 * row_tiles * kLinearRows * 4; }
};

// Calls f<kTokens>() with the token rows of a tile.
template <class F>
auto with_tile_tokens(int tokens, const F& f) {
  switch (tokens) {
    case 8: return f.template operator()<8>();
    case 16: return f.template operator()<16>();
    case 32: return f.template operator()<32>();
    case 64: return f.template operator()<64>();
    default: return f.template operator()<128>();
  }
}

// A warpgroup multiplies one row group. With 128 tokens a thread of four warpgroups has too few registers.
constexpr StreamedTile streamed_tile(int tokens, int row_tiles) {
  const int warpgroups = tokens > 64 ? 2 : 4;
  return {tokens, row_tiles, warpgroups, warpgroups / row_tiles};
}

// Bytes of weights that a CTA has in flight, or all blocks of its ring. About 33 KB in flight per SM hide the memory latency; more would
// only queue. All rings at once are 25 MB, 6 us of memory time, before whatever is loaded next: rows of the preceding kernel; code, tokens
// and weights of the CTAs that start last (docs/kernels/decode_layer.md). Not measured for more than 32 tokens.
inline constexpr int kStreamedInFlight = 64 << 10;
constexpr int blocks_in_flight(const StreamedTile& tile, int bytes, int block_bytes, int stages) {
  return tile.tokens > 32 ? stages : std::min(bytes / block_bytes, stages);
}

// Grid: the tiles of a group, groups.
struct StreamedArgs : TokenProductArgs {
  int tile_rows, split;   // features of a tile; CTAs per tile, 1 or 2, each with a share of k
  int in_flight;          // blocks of weights in flight per CTA
  int stages, max_chunk;  // of the ring: all blocks of k of a CTA, or a multiple of the slices; most blocks of k of a CTA
  // Quantised y: its scales, one per 128 features, which then are a tile.
  float* y_scale = nullptr;
  int64_t y_scale_stride = 0, y_scale_group = 0;
  bool ue8m0 = false;
};

// Dynamic shared memory: the ring, whose stages hold a block of the tile's weights and one of the tokens' rows. The partial sums are stored
// there when all is multiplied. Then what the other CTA of a pair sends, scales of x and of the weight, and barriers (weights full, tokens
// full and empty per stage, all sent).
struct StreamedShared {
  int stage, sent, x_scale, w_scale, barriers, bytes;  // bytes of a stage, offsets
  constexpr StreamedShared(const StreamedTile& tile, int tile_rows, int split, int max_chunk, int stages)
      : stage((tile_rows + tile.tokens) * kLinearBlock),
        sent(ring_bytes(tile, stage, stages)),
        x_scale(sent + (split > 1 ? tile.sent_bytes() : 0)),
        w_scale(x_scale + max_chunk * tile.tokens * 4),
        barriers((w_scale + kStreamedScaleRows * max_chunk * 4 + 7) / 8 * 8),
        bytes(barriers + stages * 24 + 8) {}

 private:
  // The last row group of the last stage is multiplied as if it had 64 rows.
  static constexpr int ring_bytes(const StreamedTile& tile, int stage, int stages) {
    const int multiplied = (stages - 1) * stage + tile.row_tiles * kLinearRows * kLinearBlock;
    const int least = multiplied > tile.partial_bytes() ? multiplied : tile.partial_bytes();
    return stages * stage > least ? stages * stage : least;
  }
};

// The kernel of this tile, with quantised output or without. Its arguments: the tensor maps of the weight and of x, and StreamedArgs.
const void* streamed_kernel(const StreamedTile& tile, bool quantized);

// How a product is divided; absent where there are too many tiles to be in flight at once.
struct StreamedPlan {
  StreamedTile tile;
  int tile_rows, tiles_per_group, split, max_chunk, stages;
  // Whether a tile has exactly the features under one scale of a quantised y.
  bool writes_quantized() const { return tile_rows == kActivationBlock; }
};
std::optional<StreamedPlan> plan_streamed(const LinearWeight& weight, int64_t tokens, bool shares_device, const Capabilities& device);
void run_streamed(const StreamedPlan& plan, const TokenProduct& product, const Capabilities& device, cudaStream_t stream);

}  // namespace strata::cuda::sm90
