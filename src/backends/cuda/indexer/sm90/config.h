// Shapes of Hopper's logits kernel, and what it is launched with.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/indexer/sm90/seats.h"

namespace strata::cuda::sm90 {

inline constexpr int kTileRows = 64;  // of the cache: a page is a whole number of tiles
inline constexpr int kIndexerDim = 128;
inline constexpr int kPrefillSlots = 14;                                               // tiles of a block in flight
inline constexpr int kDecodeWarpgroups = 2, kDecodeScorers = 128 * kDecodeWarpgroups;  // of a block, and their threads
inline constexpr int kDecodeThreads = kDecodeScorers + 32;                             // and a warp that loads
// Tiles of a block in flight: with so few it finds room beside a product that runs at the same time. That is for many tokens, and for so
// few tiles that no SM has two; of rows that are longer only where there is such a product, as they want more. Of more tokens yet the
// product is not what matters: two such blocks fit on an SM, and while blocks of the kernel in front are still there, all of them begin on
// the SMs that are free, two on each, which then take a quarter longer than all SMs would.
inline constexpr int kDecodeSlots = 18, kDecodeSlotsBesideOthers = 8;
inline constexpr int64_t kBesideOthersTokens = 9, kBesideOthersMostTokens = 32, kBesideOthersRows = 16384;
// Longer rows than the first lose more by few tiles than they gain by the room. A bound beyond the second is a captured step's and says
// nothing: so many rows of so many tokens are more than a GPU's memory holds.
inline constexpr int64_t kBesideOthersLongRows = 32768, kBesideOthersBound = 131072;
inline constexpr int kDecodeRegisters = 80;  // a thread: beside them there is room for a block of the selection

struct LogitsArgs {
  CUtensorMap rows_map;  // of the cache: pages, rows
  const uint8_t* q;      // [num_tokens, heads, 128]
  const float* weights;  // [num_tokens, heads]
  const uint8_t* cache;
  int32_t page_stride;
  int32_t scales_offset;  // within a page
  Divisor page_tiles;     // tiles of a page
  const int32_t* block_table;
  int64_t table_stride, table_entries;  // elements between requests, and up to the end of the last one
  const int32_t* token_to_req;
  const int32_t* lengths;
  int32_t skip;
  float* logits;
  int64_t logits_stride;
  float* maxima;  // nullptr: nobody wants them
  int64_t maxima_stride;
  int32_t maxima_from;  // of rows that are longer
  int64_t num_tokens;
  Divisor parts;        // of the work, one after another
  Divisor token_parts;  // of a token's own, where as many as that are as good: 1 at least
  int heads;
};

}  // namespace strata::cuda::sm90
