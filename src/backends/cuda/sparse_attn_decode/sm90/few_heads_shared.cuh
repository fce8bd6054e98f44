// Shared memory of the decode kernel for few heads: a ring of tiles of cache rows as they are in memory, and what the warpgroups exchange
// per tile.
#pragma once

#include <algorithm>

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/rotation.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/token_rows.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Row r's 16-byte unit u is stored at unit u ^ bank_swap(r). With an odd number of half lines per row, eight lanes of a warp then hit eight
// different banks in both read patterns: four units of two neighbouring rows (logits), and one unit of rows q and q + 8 for four q
// (values).
__device__ __forceinline__ constexpr int bank_swap(int row) { return row & 2 | row >> 3 & 1; }

// Warpgroups that alternate in logits and softmax, and warpgroups with half of the value dimensions each. One more warpgroup loads.
inline constexpr int kLogitGroups = 2, kValueGroups = 2, kGroups = kLogitGroups + kValueGroups;
inline constexpr int kConsumers = kGroups * kWarpgroup, kBlockThreads = kConsumers + kWarpgroup;

inline constexpr int kCombineUnits = kValueDim / 8;  // units of eight value dimensions per head

// What a CTA of a cluster combines (few_heads_combine.cuh): of n splits, n slots for each of its heads, which are every n-th of kHeads.
template <int kHeads, bool kInCluster>
struct ClusterCombine {};
template <int kHeads>
struct ClusterCombine<kHeads, true> {
  static constexpr int kSlots = [] {
    int most = 0;
    for (int splits = 2; splits <= kMaxClusterSplits; ++splits) most = std::max(most, (kHeads + splits - 1) / splits * splits);
    return most;
  }();
  uint4 values[kSlots][kCombineUnits];  // fp16
  float4 ends[kSlots];                  // lse and maximum in base 2, unshift
  uint64_t arrived;                     // barrier of the values and ends of all slots
  // Cluster addresses: where this CTA's split of each head is written.
  struct {
    uint32_t values, end, arrived;
  } to[kHeads];
  int32_t splits, own_heads;
};

// Sums of weights of each thread of the logits groups, where they do not fit in registers.
template <int kQuads>
struct SharedWeightSums {
  float4 of_threads[kLogitGroups][kQuads][kWarpgroup];
};
template <>
struct SharedWeightSums<0> {};

template <KvFormat kFormat_, int kHeads_, bool kInCluster_ = false, bool kPersistent_ = false>
struct alignas(1024) Shared {
  static constexpr KvFormat kFormat = kFormat_;
  static constexpr bool kV4 = kFormat == KvFormat::fp8_ds_mla_v4;
  static constexpr int kHeads = kHeads_;
  static constexpr bool kInCluster = kInCluster_;    // the CTAs of a token's splits are a cluster and combine them
  static constexpr bool kPersistent = kPersistent_;  // a CTA processes several tokens (few_heads_persistent.cuh)
  static constexpr int kHeadTiles = kHeads / 8;      // of eight heads each
  static constexpr int kRowBytes = static_cast<int>(row_data_bytes(kFormat, 0));
  static constexpr int kPitch = kV4 ? 576 : 704;
  static constexpr int kQuantizedBlocks = kV4 ? 7 : 8;  // quantisation blocks of 64 e4m3 values
  static constexpr int kQueryChunks = kChunks<kFormat>, kHeadBytes = kHeads * 2 * kChunkDims;
  // With five stages for V4 the first tiles would arrive later, in the burst of all CTAs' first requests
  // (docs/kernels/sparse_attn_decode.md).
  static constexpr int kRing = 4;
  static constexpr int kTilesInFlight = kV4 ? 2 : kRing;                // tiles in flight: two are enough, and more arrive less evenly
  static constexpr int kPairs = kRowTile / 2, kPairPitch = kPairs + 4;  // avoids bank conflicts
  static_assert(kPitch >= kRowBytes && kPitch % 128 == 64);

  // Products of few heads are mma.sync of each warp (few_heads_products.cuh), which start and end sooner. Every warp reads what wgmma reads
  // once for four warps. So with more heads shared memory becomes the limit: with the logits' queries sooner than with the weights.
  static constexpr bool kOwnLogits = kHeads <= 8, kOwnValues = kHeads <= 16;

  static constexpr bool kSumsInShared = kV4 && kHeads > 16;

  // Operands of wgmma: for each head a row of 64 fp16 (rotary query dimensions: bf16), swizzled by 128 bytes.
  uint8_t q[kQueryChunks][kHeadBytes];  // dimensions in the order of few_heads_queries.cuh
  uint8_t p[kLogitGroups][kHeadBytes];  // softmax weights, cache rows in the order of pair_of
  uint8_t rows[kRing][kRowTile][kPitch];
  uint64_t scales[kV4 ? kRing : 1][kRowTile];  // V4: the rows' eight scale bytes
  uint32_t attended[kRing][4];                 // bit r of word w: row 16 w + r is attended
  uint64_t full[kRing], empty[kRing];
  alignas(8) float factor[kHeads];  // factor from a head's raw logits to base 2, scale included
  float sink[kHeads];               // base 2; -inf: none

  // Of each logits group's last tile, whose values are not accumulated yet (like p).
  alignas(16) uint32_t value_scales[kLogitGroups][8][kPairPitch];  // of the 64 value dimensions of a block, fp16, per pair of rows
  float running_max[kLogitGroups][kHeads];                         // running maximum that the weights use, base 2
  int32_t top_scale[kLogitGroups];                                 // value scales are relative to 2^(top_scale - kExponentBias)
  float rescale[kLogitGroups][kHeads];                             // factor that rescales earlier sums to the tile's maximum and scale
  bool rescaled[kLogitGroups];                                     // some rescale is not 1

  float columns[kLogitGroups][4][kHeads];  // per warp of a group: a head's largest logit
  uint32_t tops[kLogitGroups][4];          // per warp: the largest scale exponent of its rows
  float maximum[kLogitGroups][kHeads];     // of a group's logits so far
  // Per warp: what is added to a head's logits; at the end the sum of the warp's weights, relative to `running_max` of its group.
  alignas(8) float of_warps[kLogitGroups][4][kHeads];
  Rotation rotation;         // of the CTA's token
  float normaliser[kHeads];  // factor from sums of values to the output
  uint64_t previous_ended;   // arrived on when a consumer has seen the end of the preceding kernel
  // For CTAs with several tokens (few_heads_persistent.cuh): the number of tiles of the token whose queries are in the stage; whether the
  // group's tile is its token's last.
  int32_t tiles[kRing];
  bool last[kLogitGroups];
  [[no_unique_address]] SharedWeightSums<kSumsInShared ? kHeads / 16 : 0> weight_sums;
  [[no_unique_address]] ClusterCombine<kHeads, kInCluster> combine;
};
static_assert(sizeof(Shared<KvFormat::fp8_ds_mla, 32>) <= 232448 && sizeof(Shared<KvFormat::fp8_ds_mla_v4, 32>) <= 232448);
static_assert(sizeof(Shared<KvFormat::fp8_ds_mla_v4, 16, true>) <= 232448);

// Initialises the barriers; one thread, before anything else. Every loading thread arrives for its copies; one lane of each loading warp
// also for `attended`.
template <class Shared>
__device__ __forceinline__ void prepare(Shared& shared) {
  for (int stage = 0; stage < Shared::kRing; ++stage) {
    ptx::mbarrier_init(ptx::shared_address(&shared.full[stage]), kWarpgroup + kWarpgroup / 32 * kWarpArrivals);
    ptx::mbarrier_init(ptx::shared_address(&shared.empty[stage]), kValueGroups * kWarpgroup / 32 * kWarpArrivals);
  }
  ptx::mbarrier_init(ptx::shared_address(&shared.previous_ended), 1);
  if constexpr (Shared::kInCluster) ptx::mbarrier_init(ptx::shared_address(&shared.combine.arrived), 1);
  ptx::fence_mbarrier_init();
}

// The ring stage of the CTA's tile number `tile`, and the parity of its phase.
template <class Shared>
struct RingStage {
  uint32_t index, parity;

  __device__ __forceinline__ explicit RingStage(uint32_t tile) : index(tile % Shared::kRing), parity(tile / Shared::kRing & 1u) {}
  __device__ __forceinline__ void wait_until_full(const Shared& shared) const {
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[index]), parity);
  }
  __device__ __forceinline__ void wait_until_empty(const Shared& shared) const {
    ptx::mbarrier_wait(ptx::shared_address(&shared.empty[index]), parity ^ 1u);
  }
};

// All threads of the CTA meet; in a cluster those of all its CTAs, while the preceding kernel runs: no CTA may send to a barrier that is
// not initialised.
template <class Shared>
__device__ __forceinline__ void meet() {
  if constexpr (Shared::kInCluster) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
}

// Named barriers. kRunningMaxReady + i: logits group i may continue; the other group has published its running maximum. kWeightsReady + i:
// group i has stored a tile's weights for the values. kWeightsFree + i: these weights have been read. kLogitsDone: both logits groups.
// kRotationFree: the values group that rotates.
constexpr uint32_t kAllConsumers = 1, kRunningMaxReady = 2, kWeightsReady = 4, kWeightsFree = 6, kLogitsDone = 8, kNormaliserReady = 9,
                   kRotationFree = 10;
constexpr uint32_t kLogitsThreads = kLogitGroups * kWarpgroup, kWeightsThreads = (1 + kValueGroups) * kWarpgroup,
                   kNormaliserThreads = 32 + kValueGroups * kWarpgroup;

}  // namespace strata::cuda::sparse_decode::few_heads
