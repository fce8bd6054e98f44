// Shapes of Hopper's logits kernels, and their arguments.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/indexer/sm90/token_tiles.h"

namespace strata::cuda::sm90 {

inline constexpr int kTileRows = 64;  // of the cache: a page is a whole number of tiles
inline constexpr int kIndexerDim = 128;
inline constexpr int kPrefillSlots = 14;                                               // tiles of a CTA in flight
inline constexpr int kDecodeWarpgroups = 2, kDecodeScorers = 128 * kDecodeWarpgroups;  // of a CTA, and their threads
inline constexpr int kDecodeThreads = kDecodeScorers + 32;                             // plus a warp that loads
// Tiles of a CTA in flight. With kDecodeSlotsConcurrent a CTA fits on an SM together with a product that runs concurrently. That number
// is for many tokens, and for so few tiles that no SM has two. For longer rows it is used only where there is such a product, because long
// rows need more tiles in flight. For still more tokens the product does not matter. Then two such CTAs would fit on an SM: while CTAs of
// the preceding kernel still run, all would start on the free SMs, two on each, and take a quarter longer than on all SMs.
inline constexpr int kDecodeSlots = 18, kDecodeSlotsConcurrent = 8;
inline constexpr int64_t kConcurrentTokens = 9, kConcurrentMaxTokens = 32, kConcurrentRows = 16384;
// Rows longer than the first number lose more by few tiles in flight than they gain by the room. A bound above the second is that of a
// captured step and carries no information: that many rows of that many tokens exceed a GPU's memory.
inline constexpr int64_t kConcurrentLongRows = 32768, kConcurrentRowBound = 131072;
inline constexpr int kDecodeRegisters = 80;  // per thread: leaves room for a CTA of the selection

struct LogitsArgs {
  CUtensorMap rows_map;  // of the cache: pages, rows
  const uint8_t* q;      // [num_tokens, heads, 128]
  const float* weights;  // [num_tokens, heads]
  const uint8_t* cache;
  int32_t page_stride;
  int32_t scales_offset;  // within a page
  Divisor page_tiles;     // tiles per page
  const int32_t* block_table;
  int64_t table_stride, table_entries;  // elements between requests, and up to the end of the last one
  const int32_t* token_to_req;
  const int32_t* lengths;
  int32_t skip;
  float* logits;
  int64_t logits_stride;
  float* maxima;  // nullptr: not written
  int64_t maxima_stride;
  int32_t maxima_from;  // only of rows longer than this
  int64_t num_tokens;
  Divisor num_shares;        // of the work, consecutive
  Divisor shares_per_token;  // of a single token, where as many as that are as good: at least 1
  int heads;
};

}  // namespace strata::cuda::sm90
