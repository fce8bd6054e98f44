// Shared memory of the decode kernel for few heads: a ring of tiles of cache rows as they are in memory.
#pragma once

#include "backends/cuda/sm90/sparse_decode/token_rows.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Warpgroups that take tiles in turn; one more loads.
inline constexpr int kGroups = 2, kBlockThreads = (kGroups + 1) * kWarpgroup;
static_assert(kGroups * kWarpgroup == kConsumerThreads);

// Row r's 16-byte unit u is at unit u ^ bank_swap(r): with an odd number of half lines a row, eight lanes of a warp then find eight
// different banks both when they read four units of two neighbouring rows (logits) and two units of one row in each sixteen (values).
__device__ __forceinline__ int bank_swap(int row) { return row / 16 & 2; }

template <KvFormat kFormat_, int kHeads_>
struct alignas(128) Shared {
  static constexpr KvFormat kFormat = kFormat_;
  static constexpr bool kV4 = kFormat == KvFormat::fp8_ds_mla_v4;
  static constexpr int kHeads = kHeads_;
  static constexpr int kHeadTiles = kHeads / 8;  // N of mma is 8
  static constexpr int kRowBytes = static_cast<int>(row_data_bytes(kFormat, 0));
  static constexpr int kPitch = kV4 ? 576 : 704;
  static constexpr int kCodeBlocks = kV4 ? 7 : 8;             // of 64 codes
  static constexpr int kStepPairs = kRowLanes<kFormat> / 32;  // pairs of steps of 16 lanes
  static constexpr int kRing = kV4 && kHeads <= 16 ? 5 : kV4 || kHeads <= 16 ? 4 : 3;
  static constexpr int kPairs = kRowTile / 2, kPairPitch = kPairs + 4;  // no bank twice
  static_assert(kPitch >= kRowBytes && kPitch % 128 == 64);

  uint8_t rows[kRing][kRowTile][kPitch];
  uint4 q[kStepPairs][kHeadTiles][32];            // fp16, in the order of mma's B operand
  uint64_t scales[kV4 ? kRing : 1][kRowTile];     // V4: the rows' eight scale bytes
  uint32_t p[kGroups][kHeads][kPairPitch];        // fp16 weights of pairs of rows
  uint32_t value_scales[kGroups][8][kPairPitch];  // of the 64 value lanes of a block, fp16, of the same pairs
  float columns[kGroups][4][kHeads];              // what each warp of a group knows of a head
  uint32_t tops[kGroups][4];                      // and of its rows' scales
  float factor[kHeads];                           // a head's logits to base 2, with the scale
  float subtracted[kGroups][2][kHeads];           // what a group's weights are relative to: before a tile, and after it
  float maximum[kGroups][kHeads];                 // a group's largest logit
  float2 sums[kGroups][kHeadTiles][kWarpgroup];   // of the weights of a thread's rows, for two heads in each eight
  float own[kGroups][kHeads];                     // at the end: what a group's sums of values become the output by
  float sink[kHeads];                             // base 2; -inf without
  struct {
    int32_t top_scale;
    uint32_t turn;
  } end[kGroups];               // at the end: what a group's value scales are relative to, and which of `subtracted` is the last
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
