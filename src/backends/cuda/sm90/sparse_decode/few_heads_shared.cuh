// Shared memory of the decode kernel for few heads: a ring of tiles of cache rows as they are in memory.
#pragma once

#include "backends/cuda/sm90/sparse_decode/token_rows.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Row r's 16-byte unit u is at unit u ^ bank_swap(r): with an odd number of half lines a row, eight lanes of a warp then find eight
// different banks both when they read four units of two neighbouring rows (logits) and one unit of rows q and q + 8 for four q (values).
__device__ __forceinline__ constexpr int bank_swap(int row) { return row & 2 | row >> 3 & 1; }

template <KvFormat kFormat_, int kHeads_>
struct alignas(1024) Shared {
  static constexpr KvFormat kFormat = kFormat_;
  static constexpr bool kV4 = kFormat == KvFormat::fp8_ds_mla_v4;
  static constexpr int kHeads = kHeads_;
  // One warpgroup more loads.
  static constexpr int kGroups = few_heads_groups(kHeads), kConsumers = kGroups * kWarpgroup, kBlockThreads = kConsumers + kWarpgroup;
  static constexpr int kHeadTiles = kHeads / 8;  // of eight heads
  static constexpr int kRowBytes = static_cast<int>(row_data_bytes(kFormat, 0));
  static constexpr int kPitch = kV4 ? 576 : 704;
  static constexpr int kCodeBlocks = kV4 ? 7 : 8;  // of 64 codes
  static constexpr int kQueryChunks = kChunks<kFormat>, kHeadBytes = kHeads * 2 * kChunkLanes;
  // With five places for V4 the first tiles come later, in the rush of all blocks' first requests (docs/kernels, few heads).
  static constexpr int kRing = 4;
  static constexpr int kPairs = kRowTile / 2, kPairPitch = kPairs + 4;  // no bank twice
  static_assert(kPitch >= kRowBytes && kPitch % 128 == 64);

  // Operands of wgmma: a row of 64 fp16 (rotated queries: bf16), swizzled by 128 bytes, for each head.
  uint8_t q[kQueryChunks][kHeadBytes];  // lanes in the order of few_heads_queries.cuh
  uint8_t p[kGroups][kHeadBytes];       // weights, cache rows in the order of pair_of
  uint8_t rows[kRing][kRowTile][kPitch];
  uint64_t scales[kV4 ? kRing : 1][kRowTile];     // V4: the rows' eight scale bytes
  uint32_t value_scales[kGroups][8][kPairPitch];  // of the 64 value lanes of a block, fp16, of pairs of rows
  float columns[kGroups][4][kHeads];              // what each warp of a group knows of a head
  uint32_t tops[kGroups][4];                      // and of its rows' scales
  float factor[kHeads];                           // a head's logits to base 2, with the scale
  float sink[kHeads];                             // base 2; -inf without
  // At the end: what a group's weights are relative to, its largest logits, and what its sums of values are relative to.
  float subtracted[kGroups][kHeads], maximum[kGroups][kHeads];
  int32_t top_scale[kGroups];
  uint32_t attended[kRing][4];  // bit r of word w: row 16 w + r is attended
  uint64_t full[kRing], empty[kRing];
};
static_assert(sizeof(Shared<KvFormat::fp8_ds_mla, 32>) <= 232448 && sizeof(Shared<KvFormat::fp8_ds_mla_v4, 32>) <= 232448);
static_assert(sizeof(Shared<KvFormat::fp8_ds_mla, 16>) <= 232448 && sizeof(Shared<KvFormat::fp8_ds_mla_v4, 16>) <= 232448);

// Barriers; one thread, before anything else. Every loading thread tells of its copies, a lane of its warps of `attended` too.
template <class Shared>
__device__ __forceinline__ void prepare(Shared& shared) {
  for (int stage = 0; stage < Shared::kRing; ++stage) {
    ptx::mbarrier_init(ptx::shared_address(&shared.full[stage]), kWarpgroup + kWarpgroup / 32);
    ptx::mbarrier_init(ptx::shared_address(&shared.empty[stage]), kWarpgroup / 32);
  }
  ptx::fence_mbarrier_init();
}

}  // namespace strata::cuda::sparse_decode::few_heads
