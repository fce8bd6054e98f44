// The ring of tiles of the logits kernels for few tokens: one warp fills it by TMA, and warpgroups process its tiles round-robin, all with
// the same queries.
#pragma once

#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/indexer/indexer.h"
#include "backends/cuda/indexer/order_key.cuh"
#include "backends/cuda/indexer/sm90/scorer.cuh"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sm90 {

// Followed by the rows of as many tiles as a launch has slots, at most kMaxSlots. Slots are a multiple of the warpgroups, so that a slot
// always belongs to the same warpgroup. Another one might be ahead, and take an earlier phase's tile for its own.
template <int kMaxSlots>
struct alignas(1024) RingShared {
  uint8_t queries[Scorer<64, 1>::kQueryBytes];
  float scales[kMaxSlots][kTileRows];
  float weights[64];
  uint64_t full[kMaxSlots], empty[kMaxSlots];
  __device__ uint8_t* rows(int slot) { return reinterpret_cast<uint8_t*>(this + 1) + slot * kRowBytes; }
};

// Initialises the barriers, by all threads; __syncthreads must follow.
template <class Shared>
__device__ __forceinline__ void prepare_ring(const LogitsArgs& a, Shared& s, int slots) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < slots) {
    ptx::mbarrier_init(ptx::shared_address(&s.full[thread]), 1);
    ptx::mbarrier_init(ptx::shared_address(&s.empty[thread]), 4 * kWarpArrivals);
  }
  ptx::fence_mbarrier_init();
  if (thread == 0) ptx::prefetch_tensor_map(&a.rows_map);
}

// A warp that fills the ring, as soon as there is room.
template <class Shared>
class RingFiller {
 public:
  __device__ RingFiller(const LogitsArgs& a, Shared& s, int slots) : a_(a), s_(s), slots_(slots) {}

  // Adds `count` tiles, one per lane: the page, and its first row there.
  __device__ __forceinline__ void add(int count, int page, int row) {
    for (int j = 0; j < count; ++j) {
      const int its_page = __shfl_sync(kAllLanes, page, j), its_row = __shfl_sync(kAllLanes, row, j);
      if (round_ > 0) ptx::mbarrier_wait(ptx::shared_address(&s_.empty[slot_]), (round_ - 1) & 1);
      if (threadIdx.x % 32 == 0) load_tile(a_, its_page, its_row, s_.rows(slot_), s_.scales[slot_], &s_.full[slot_], policy_);
      if (++slot_ == slots_) {
        slot_ = 0;
        ++round_;
      }
    }
  }

 private:
  const LogitsArgs& a_;
  Shared& s_;
  const int slots_;
  const uint64_t policy_ = ptx::evict_first_policy();  // the logits are what should stay in L2
  int slot_ = 0, round_ = 0;
};

// Loads the queries and weights of a token, by the kScorers threads that process tiles, once the previous ones have been used. meanwhile()
// issues other loads while these are in flight.
template <int kScorers, class Shared, class Meanwhile>
__device__ __forceinline__ Scorer<64, 1> load_token(const LogitsArgs& a, Shared& s, int64_t token, const Meanwhile& meanwhile) {
  const int thread = static_cast<int>(threadIdx.x);
  Scorer<64, 1>::load_queries(a, s.queries, token, thread, kScorers);
  if (thread < 64) s.weights[thread] = Scorer<64, 1>::weight(a, token, thread);
  meanwhile();
  ptx::barrier_sync(1, kScorers);
  Scorer<64, 1> scorer;
  scorer.set_weights([&](int column) { return s.weights[column]; });
  return scorer;
}

// A warpgroup's tiles: every kWarpgroups-th from its own on.
template <int kWarpgroups, class Shared>
class RingConsumer {
 public:
  __device__ RingConsumer(Shared& s, int slots, int warpgroup) : s_(s), slots_(slots), slot_(warpgroup) {}

  // The row within a tile whose logit a thread has; threads of a quad share two.
  __device__ static int own_row() {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    return thread / 32 * 16 + thread % 32 / 4 + 8 * (thread & 1);
  }

  // The next tile's logit of this thread's row.
  __device__ __forceinline__ float score(const Scorer<64, 1>& scorer) {
    ptx::mbarrier_wait(ptx::shared_address(&s_.full[slot_]), parity_);
    __syncwarp();  // all lanes have seen this phase
    float sums[Scorer<64, 1>::kSums];
    multiply(sums, ptx::shared_address(s_.rows(slot_)), ptx::shared_address(s_.queries));
    const float scale = ptx::ld_shared_f32(ptx::shared_address(&s_.scales[slot_][own_row_]));
    ptx::wgmma_wait<0>();
    arrive_warp(s_.empty[slot_]);  // all lanes have their scale
    slot_ += kWarpgroups;
    if (slot_ >= slots_) {
      slot_ -= slots_;
      parity_ ^= 1;
    }
    return scorer.weighted_sum(sums) * scale;
  }

 private:
  Shared& s_;
  const int slots_, own_row_ = own_row();
  int slot_;
  uint32_t parity_ = 0;
};

// Writes the maximum of every kMaximaRows of a row's n logits; a warp has kMaximaRows logits of a tile.
__device__ __forceinline__ void note_maximum(float* maxima, int tile, int row, int n, float logit) {
  const uint32_t largest = __reduce_max_sync(kAllLanes, row < n ? order_key(logit) : 0);
  const int group = tile * (kTileRows / kMaximaRows) + static_cast<int>(threadIdx.x) % 128 / 32;
  if (threadIdx.x % 32 == 0 && group * kMaximaRows < n) maxima[group] = logit_of(largest);
}

}  // namespace strata::cuda::sm90
