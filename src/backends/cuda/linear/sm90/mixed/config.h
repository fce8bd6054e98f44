// A linear layer of bf16 activations and e4m3 weights on Hopper: definitions shared by host code and the kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/linear/sm90/streamed.h"

namespace strata::cuda::sm90 {

inline constexpr int kMixedBlock = 128;                              // channels at a time
inline constexpr int kMixedRows = 64;                                // features of a row group, which one warpgroup multiplies
inline constexpr int kMixedRowTileBytes = kMixedRows * kMixedBlock;  // e4m3 values of a row group's block
inline constexpr int kMixedTileRows = 2 * kMixedRows;                // features of a packed tile
inline constexpr int kMixedInFlight = 48 << 10;                      // bytes of e4m3 weights that a CTA has in flight (blocks_in_flight)
inline constexpr int kMixedTokens = 128;                             // of a tile, at most

// A packed weight: e4m3 values, [G * n / 128][K / 128][2 row groups][64 x 128], then their scales, f32 [G * n / 64][K / 128].
//
// A row group's block is stored in the order in which its warpgroup reads it. Each warp has 16 rows; its 64 channels j and 8 rows h are in
// four units 2 j + h of 16 bytes per lane. A unit is four words (mixed_word.h), of 16 channels each: lane 4 r + q has, of row 8 h + r, the
// values of channels 2 q, 2 q + 1 and 2 q + 8, 2 q + 9, which are its operands of wgmma.
inline int64_t packed_weight_bytes(const LinearWeight& w) { return w.groups * w.n * w.k; }
inline int64_t mixed_bytes(const LinearWeight& w) { return packed_weight_bytes(w) + w.groups * w.n / kMixedRows * (w.k / kMixedBlock) * 4; }

// One call. Group g multiplies x[:, g] to y[:, g].
struct MixedArgs {
  const uint8_t* packed_weight;  // of a packed weight
  const float* w_scale;
  void* y;                    // bf16 or e4m3
  int64_t y_stride, y_group;  // elements
  bool y_f32;
  float* y_scale;  // quantised y: its scales, one per 128 features, which are a tile
  int64_t y_scale_stride, y_scale_group;
  bool ue8m0;
  int num_tokens, tile_tokens;  // tokens of a tile: a multiple of 8; rows after them in shared memory are multiplied, not stored
  int n, num_blocks;            // features per group; blocks of channels
  int tile_rows, split;         // features of a tile, 64 or 128; CTAs per tile, 1 or 2, each with a share of k
  int in_flight;                // blocks of weights in flight per CTA
  int stages, max_chunk;        // of the ring: all blocks of k of a CTA, or a multiple of the slices; most blocks of k of a CTA
};

// Dynamic shared memory: the ring, whose stages hold a block of the tile's weights and one of the tokens. The partial sums are stored there
// when all is multiplied. Then what the other CTA of a pair sends, scales of the weight, and barriers (weights full, tokens full and empty
// per stage; all sent).
struct MixedShared {
  int stage, sent, w_scale, barriers, bytes;  // bytes of a stage, offsets
  constexpr MixedShared(const StreamedTile& tile, int split, int max_chunk, int stages)
      : stage(tile.row_tiles * kMixedRowTileBytes + tile.tokens * kMixedBlock * 2),
        sent(std::max(stages * stage, tile.partial_bytes())),
        w_scale(sent + (split > 1 ? tile.sent_bytes() : 0)),
        barriers((w_scale + tile.row_tiles * max_chunk * 4 + 7) / 8 * 8),
        bytes(barriers + stages * 24 + 8) {}
};

// The kernel of this tile, with quantised output or without. Its arguments: the tensor map of x, and MixedArgs.
const void* mixed_kernel(const StreamedTile& tile, bool packed_weight);

}  // namespace strata::cuda::sm90
