// An FP8 linear layer for few tokens on Hopper whose tiles are all under way at once: what host code and the kernel agree on.
#pragma once

#include <algorithm>
#include <optional>

#include "backends/cuda/linear/sm90/token_product.h"
#include "formats/quantize.h"

namespace strata::cuda::sm90 {

// A tile has rows in multiples of this: those of a warp in wgmma, which then have one weight scale.
inline constexpr int kStreamedRowStep = 16;
// Scale blocks of at least 64 rows that a tile of 128 can touch.
inline constexpr int kStreamedScaleRows = 3;

// What is fixed when the kernel is compiled: rows of tokens (8, 16, 32, 64 or 128), parts of 64 features, 1 or 2, of which the last may be
// partly filled, warpgroups, and slices of k: so many of those that multiply have the same features and take the blocks of k in turns.
struct StreamedTile {
  int tokens, parts, warpgroups, slices;
  constexpr int consumers() const { return 128 * warpgroups; }  // threads that multiply
  constexpr int threads() const { return consumers() + 64; }    // and a warp that asks for weights, and one for tokens
  // Floats of a token's partial sums; 4 against bank conflicts.
  constexpr int partial_stride() const { return parts * kLinearRows + 4; }
  constexpr int partial_bytes() const { return slices * tokens * partial_stride() * 4; }
  // Sums that the other CTA of a pair sends: those of half of the tokens.
  constexpr int sent_bytes() const { return tokens / 2 * parts * kLinearRows * 4; }
};

// f<kTokens>() of the rows of tokens of a tile.
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

// A warpgroup has a part. Of 128 tokens a thread of four has too few registers.
constexpr StreamedTile streamed_tile(int tokens, int parts) {
  const int warpgroups = tokens > 64 ? 2 : 4;
  return {tokens, parts, warpgroups, warpgroups / parts};
}

// How many blocks of weights a CTA asks for at a time: those of so many bytes, or as many as its ring has. Some 33 KB an SM hide the way
// from memory, and more stand in line: all rings at once are 25 MB, 6 us of what memory carries, in front of whatever is asked for next,
// such as rows of the kernel in front, and code, tokens and weights of the CTAs that begin last (docs/kernels/20261121-layer-decode.md). Of
// more tokens than 32 not measured.
inline constexpr int kStreamedInFlight = 64 << 10;
constexpr int blocks_in_flight(const StreamedTile& tile, int bytes, int block_bytes, int stages) {
  return tile.tokens > 32 ? stages : std::min(bytes / block_bytes, stages);
}

// Blocks of a grid: of the tiles of a group, of groups.
struct StreamedArgs : TokenProductArgs {
  int tile_rows, split;   // features of a tile; its CTAs, 1 or 2, each with a part of k
  int in_flight;          // blocks of weights on their way to a CTA at a time
  int stages, max_chunk;  // of the ring, all blocks of k of a CTA or a multiple of the slices; such blocks at most
  // y are codes: their scales, one of 128 features, which then are a tile.
  float* y_scale = nullptr;
  int64_t y_scale_stride = 0, y_scale_group = 0;
  bool ue8m0 = false;
};

// Dynamic shared memory: the ring, of which a stage is a block of the tile's weights and one of the tokens' rows, and where the partial
// sums are when all is multiplied; what the other CTA of a pair sends; scales of x and of the weight; barriers (weights there, tokens
// there and empty of every stage, all sent).
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
  // The last part of the last stage is multiplied as if it had 64 rows.
  static constexpr int ring_bytes(const StreamedTile& tile, int stage, int stages) {
    const int multiplied = (stages - 1) * stage + tile.parts * kLinearRows * kLinearBlock;
    const int least = multiplied > tile.partial_bytes() ? multiplied : tile.partial_bytes();
    return stages * stage > least ? stages * stage : least;
  }
};

// The kernel of this tile that leaves codes or values: of the tensor maps of the weight and of x, and the arguments.
const void* streamed_kernel(const StreamedTile& tile, bool codes);

// How a product is cut; nothing where the tiles are too many to be under way at once.
struct StreamedPlan {
  StreamedTile tile;
  int tile_rows, tiles_per_group, split, max_chunk, stages;
  // Whether a tile is the features under one scale when y are codes.
  bool leaves_codes() const { return tile_rows == kActivationBlock; }
};
std::optional<StreamedPlan> plan_streamed(const LinearWeight& weight, int64_t tokens, bool shares_device, const Capabilities& device);
void run_streamed(const StreamedPlan& plan, const TokenProduct& product, const Capabilities& device, cudaStream_t stream);

}  // namespace strata::cuda::sm90
