// Shared memory of the decode kernel for few heads: a ring of tiles of cache rows as they are in memory, and what its warpgroups tell one
// another of a tile.
#pragma once

#include <algorithm>

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/rotation.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/token_rows.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Row r's 16-byte unit u is at unit u ^ bank_swap(r): with an odd number of half lines a row, eight lanes of a warp then find eight
// different banks both when they read four units of two neighbouring rows (logits) and one unit of rows q and q + 8 for four q (values).
__device__ __forceinline__ constexpr int bank_swap(int row) { return row & 2 | row >> 3 & 1; }

// Warpgroups that take tiles in turn for logits and softmax, and those that have a half of the value lanes each; one more loads.
inline constexpr int kLogitGroups = 2, kValueGroups = 2, kGroups = kLogitGroups + kValueGroups;
inline constexpr int kConsumers = kGroups * kWarpgroup, kBlockThreads = kConsumers + kWarpgroup;

inline constexpr int kMergeUnits = kValueDim / 8;  // of eight value lanes, of a head

// What a block of a cluster merges (few_heads_merge.cuh): of n parts, n places for each of its heads, which are every n-th of kHeads.
template <int kHeads, bool kInCluster>
struct Merge {};
template <int kHeads>
struct Merge<kHeads, true> {
  static constexpr int kPlaces = [] {
    int most = 0;
    for (int parts = 2; parts <= kMostClusterParts; ++parts) most = std::max(most, (kHeads + parts - 1) / parts * parts);
    return most;
  }();
  uint4 values[kPlaces][kMergeUnits];  // fp16
  float4 ends[kPlaces];                // lse and maximum in base 2, unshift
  uint64_t arrived;                    // the values and ends of all places
  // Cluster addresses: where this block's part of each head goes.
  struct {
    uint32_t values, end, arrived;
  } to[kHeads];
  int32_t parts, own_heads;
};

// The sums of weights of each thread of the groups of logits, where they are not in registers.
template <int kQuads>
struct WeightSumsAside {
  float4 of_threads[kLogitGroups][kQuads][kWarpgroup];
};
template <>
struct WeightSumsAside<0> {};

template <KvFormat kFormat_, int kHeads_, bool kInCluster_ = false, bool kInTurn_ = false>
struct alignas(1024) Shared {
  static constexpr KvFormat kFormat = kFormat_;
  static constexpr bool kV4 = kFormat == KvFormat::fp8_ds_mla_v4;
  static constexpr int kHeads = kHeads_;
  static constexpr bool kInCluster = kInCluster_;  // the blocks of a token's parts are a cluster and merge them
  static constexpr bool kInTurn = kInTurn_;        // a block takes one token after the other (few_heads_in_turn.cuh)
  static constexpr int kHeadTiles = kHeads / 8;    // of eight heads
  static constexpr int kRowBytes = static_cast<int>(row_data_bytes(kFormat, 0));
  static constexpr int kPitch = kV4 ? 576 : 704;
  static constexpr int kCodeBlocks = kV4 ? 7 : 8;  // of 64 codes
  static constexpr int kQueryChunks = kChunks<kFormat>, kHeadBytes = kHeads * 2 * kChunkLanes;
  // With five places for V4 the first tiles come later, in the rush of all blocks' first requests (docs/kernels, few heads).
  static constexpr int kRing = 4;
  static constexpr int kAhead = kV4 ? 2 : kRing;  // tiles on their way at a time: two are enough, and more come less evenly
  static constexpr int kPairs = kRowTile / 2, kPairPitch = kPairs + 4;  // no bank twice
  static_assert(kPitch >= kRowBytes && kPitch % 128 == 64);

  // Products of few heads are mma.sync of each warp by itself (few_heads_products.cuh), which start and end sooner. Every warp reads what
  // wgmma reads once for four, so that with more heads shared memory is asked for too much: with the logits' queries sooner than with
  // weights.
  static constexpr bool kOwnLogits = kHeads <= 8, kOwnValues = kHeads <= 16;

  static constexpr bool kSumsAside = kV4 && kHeads > 16;

  // Operands of wgmma: a row of 64 fp16 (rotated queries: bf16), swizzled by 128 bytes, for each head.
  uint8_t q[kQueryChunks][kHeadBytes];  // lanes in the order of few_heads_queries.cuh
  uint8_t p[kLogitGroups][kHeadBytes];  // weights, cache rows in the order of pair_of
  uint8_t rows[kRing][kRowTile][kPitch];
  uint64_t scales[kV4 ? kRing : 1][kRowTile];  // V4: the rows' eight scale bytes
  uint32_t attended[kRing][4];                 // bit r of word w: row 16 w + r is attended
  uint64_t full[kRing], empty[kRing];
  alignas(8) float factor[kHeads];  // a head's logits to base 2, with the scale
  float sink[kHeads];               // base 2; -inf without

  // Of the last tile of each group of logits, whose values are still to be added (as is p).
  alignas(16) uint32_t value_scales[kLogitGroups][8][kPairPitch];  // of the 64 value lanes of a block, fp16, of pairs of rows
  float subtracted[kLogitGroups][kHeads];                          // what weights are relative to, base 2
  int32_t top_scale[kLogitGroups];                                 // scales of values are relative to 2^(top_scale - kExponentBias)
  float lift[kLogitGroups][kHeads];                                // what earlier sums of values become relative to the same by
  bool lifted[kLogitGroups];                                       // some lift is not 1

  float columns[kLogitGroups][4][kHeads];  // what each warp of a group knows of a head
  uint32_t tops[kLogitGroups][4];          // and of its rows' scales
  float maximum[kLogitGroups][kHeads];     // of a group's logits so far
  // Each warp's: what is added to a head's logits; at the end the sum of its weights, relative to `subtracted` of its group.
  alignas(8) float of_warps[kLogitGroups][4][kHeads];
  Rotation rotation;         // of the token
  float normaliser[kHeads];  // what sums of values become the output by
  uint64_t previous_ended;   // the kernel in front, as a consumer has found
  // Where a block takes several tokens (few_heads_in_turn.cuh): the tiles of the token whose queries are there; whether the group's tile is
  // its token's last.
  int32_t tiles[kRing];
  bool last[kLogitGroups];
  [[no_unique_address]] WeightSumsAside<kSumsAside ? kHeads / 16 : 0> weight_sums;
  [[no_unique_address]] Merge<kHeads, kInCluster> merge;
};
static_assert(sizeof(Shared<KvFormat::fp8_ds_mla, 32>) <= 232448 && sizeof(Shared<KvFormat::fp8_ds_mla_v4, 32>) <= 232448);
static_assert(sizeof(Shared<KvFormat::fp8_ds_mla_v4, 16, true>) <= 232448);

// Barriers; one thread, before anything else. Every loading thread tells of its copies, a lane of its warps of `attended` too.
template <class Shared>
__device__ __forceinline__ void prepare(Shared& shared) {
  for (int stage = 0; stage < Shared::kRing; ++stage) {
    ptx::mbarrier_init(ptx::shared_address(&shared.full[stage]), kWarpgroup + kWarpgroup / 32 * kWarpArrivals);
    ptx::mbarrier_init(ptx::shared_address(&shared.empty[stage]), kValueGroups * kWarpgroup / 32 * kWarpArrivals);
  }
  ptx::mbarrier_init(ptx::shared_address(&shared.previous_ended), 1);
  if constexpr (Shared::kInCluster) ptx::mbarrier_init(ptx::shared_address(&shared.merge.arrived), 1);
  ptx::fence_mbarrier_init();
}

// The place in the ring of a tile, of all that the block loads, and the parity of its turn.
template <class Shared>
struct Place {
  uint32_t stage, parity;

  __device__ __forceinline__ explicit Place(uint32_t tile) : stage(tile % Shared::kRing), parity(tile / Shared::kRing & 1u) {}
  __device__ __forceinline__ void wait_until_full(const Shared& shared) const {
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage]), parity);
  }
  __device__ __forceinline__ void wait_until_empty(const Shared& shared) const {
    ptx::mbarrier_wait(ptx::shared_address(&shared.empty[stage]), parity ^ 1u);
  }
};

// The block's threads meet behind that; in a cluster all its blocks', while the kernel in front runs: nobody sends what another block has
// made no barrier for.
template <class Shared>
__device__ __forceinline__ void meet() {
  if constexpr (Shared::kInCluster) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
}

// Named barriers. kTurn + i: group i of logits and the other one, which has told what its weights are relative to. kWeightsReady + i:
// it has stored a tile's weights for the values. kWeightsFree + i: they are not needed any more. kLogitsDone: both groups of logits.
// kRotationFree: the group of values that rotates.
constexpr uint32_t kAllConsumers = 1, kTurn = 2, kWeightsReady = 4, kWeightsFree = 6, kLogitsDone = 8, kNormaliserReady = 9,
                   kRotationFree = 10;
constexpr uint32_t kTurnThreads = kLogitGroups * kWarpgroup, kWeightsThreads = (1 + kValueGroups) * kWarpgroup,
                   kNormaliserThreads = 32 + kValueGroups * kWarpgroup;

}  // namespace strata::cuda::sparse_decode::few_heads
