// A linear layer of bf16 activations and e4m3 weights on Hopper: what host code and the kernels agree on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/linear/sm90/streamed.h"

namespace strata::cuda::sm90 {

inline constexpr int kMixedBlock = 128;                           // channels at a time
inline constexpr int kMixedRows = 64;                             // features of a part, which a warpgroup multiplies
inline constexpr int kMixedPartBytes = kMixedRows * kMixedBlock;  // of a part's codes of a block
inline constexpr int kMixedTileRows = 2 * kMixedRows;             // features of a packed tile
inline constexpr int kMixedInFlight = 48 << 10;                   // of codes that a CTA asks for at a time (blocks_in_flight)
inline constexpr int kMixedTokens = 128;                          // of a tile, at most

// A packed weight: codes, [G * n / 128][K / 128][2 parts][64 x 128], then their scales, f32 [G * n / 64][K / 128].
//
// A part's block is as its warpgroup reads it: for each warp, which has 16 rows, its 64 channels j and its 8 rows h in four pieces
// 2 j + h of 16 bytes a lane. Those are four words (mixed_word.h), of 16 channels each: lane 4 r + q has of row 8 h + r the codes of
// channels 2 q, 2 q + 1 and 2 q + 8, 2 q + 9, which are its operands of wgmma.
inline int64_t mixed_code_bytes(const LinearWeight& w) { return w.groups * w.n * w.k; }
inline int64_t mixed_bytes(const LinearWeight& w) { return mixed_code_bytes(w) + w.groups * w.n / kMixedRows * (w.k / kMixedBlock) * 4; }

// One call. Group g multiplies x[:, g] to y[:, g].
struct MixedArgs {
  const uint8_t* codes;  // of a packed weight
  const float* w_scale;
  void* y;                    // bf16; or e4m3 codes
  int64_t y_stride, y_group;  // elements
  bool y_f32;
  float* y_scale;  // y are codes: their scales, one of 128 features, which are a tile
  int64_t y_scale_stride, y_scale_group;
  bool ue8m0;
  int num_tokens, tile_tokens;  // tokens of a tile: a multiple of 8; what lies behind them in shared memory is multiplied, not stored
  int n, num_blocks;            // features of a group; blocks of channels
  int tile_rows, split;         // features of a tile, 64 or 128; its CTAs, 1 or 2, each with a part of k
  int in_flight;                // blocks of codes on their way to a CTA at a time
  int stages, max_chunk;        // of the ring, all blocks of k of a CTA or a multiple of the slices; such blocks at most
};

// Dynamic shared memory: the ring, of which a stage is a block of the tile's codes and one of the tokens, and where the partial sums are
// when all is multiplied; what the other CTA of a pair sends; scales of the weight; barriers (codes there, tokens there and empty of every
// stage; all sent).
struct MixedShared {
  int stage, sent, w_scale, barriers, bytes;  // bytes of a stage, offsets
  constexpr MixedShared(const StreamedTile& tile, int split, int max_chunk, int stages)
      : stage(tile.parts * kMixedPartBytes + tile.tokens * kMixedBlock * 2),
        sent(std::max(stages * stage, tile.partial_bytes())),
        w_scale(sent + (split > 1 ? tile.sent_bytes() : 0)),
        barriers((w_scale + tile.parts * max_chunk * 4 + 7) / 8 * 8),
        bytes(barriers + stages * 24 + 8) {}
};

// The kernel of this tile that leaves codes or values: of the tensor map of x, and the arguments.
const void* mixed_kernel(const StreamedTile& tile, bool codes);

}  // namespace strata::cuda::sm90
