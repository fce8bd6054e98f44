// What the roles of the kernel have in common: the rings, where bytes are.
#pragma once

#include <cstddef>

#include "backends/cuda/device/ring.cuh"
#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/mqa_engine/config.h"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/ptx/wgmma_behind.cuh"

namespace strata::cuda::sparse_prefill {

struct TileState {
  uint32_t at = 0;  // the stage
  uint32_t parities = 0, step = 1;
  uint32_t first_slot = 0, slot_parities = 0;
};

// The stage of a tile, the slots of its parts, and the parities of their rounds.
//
// Where a slot holds a whole tile, stages are taken in a circle whose sense changes with every item, behind its queries: the stage of an
// item's last tile, from which the output leaves, is then the last to be filled again. No two tiles in a row have the same stage, as the
// values of one wait for the logits of the next. Where two items share their rows, the first stage is that of queries, and the others are
// those of rows, which stay for the second item.
template <class Problem>
class TilePosition : public TileState {
  using S = typename Problem::Shape;
  using Shared = SharedMemory<typename Problem::Shape>;
  static constexpr bool kCircle = !Problem::kSharesRows;

 public:
  TilePosition() = default;
  __device__ __forceinline__ explicit TilePosition(const TileState& before) : TileState(before) {}
  __device__ __forceinline__ uint32_t parity() const { return parities >> at & 1u; }
  // The stage before, where stages are always taken in the same sense.
  __device__ __forceinline__ uint32_t last() const { return at == 0 ? kStages - 1 : at - 1; }
  __device__ __forceinline__ uint32_t slot(int part) const {
    if (S::kParts == 1) return at;
    const uint32_t s = first_slot + part;
    return s >= S::kSlots ? s - S::kSlots : s;
  }
  __device__ __forceinline__ uint32_t slot_parity(int part) const { return S::kParts == 1 ? parity() : slot_parities >> slot(part) & 1u; }
  // Where a chunk of the tile is.
  __device__ __forceinline__ uint8_t* chunk(Shared& shared, int c) const {
    return c < S::kParts * S::kPartChunks ? shared.k[slot(c / S::kPartChunks)][c % S::kPartChunks] : shared.weights[at];
  }
  // The same, counted from the first slot in 16 bytes, as descriptors do.
  __device__ __forceinline__ uint32_t chunk_place(int c) const {
    if (c >= S::kParts * S::kPartChunks) return (offsetof(Shared, weights) - offsetof(Shared, k)) / 16 + at * (kHeadChunkBytes / 16);
    return slot(c / S::kPartChunks) * static_cast<uint32_t>(sizeof(Shared::k[0]) / 16) + c % S::kPartChunks * (S::kChunkBytes / 16);
  }

  __device__ __forceinline__ void start_item() {
    if (!kCircle) at = 0;
  }
  // From a tile. stays: the next item finds it there.
  __device__ __forceinline__ void advance(bool stays = false) {
    if (!stays) parities ^= 1u << at;
    at += step;
    if (kCircle && at >= kStages) at -= kStages;
    if constexpr (S::kParts > 1) {
      constexpr uint32_t kOnes = (1u << S::kParts) - 1;
      slot_parities ^= (kOnes << first_slot | kOnes >> (S::kSlots - first_slot)) & ((1u << S::kSlots) - 1);
      first_slot += S::kParts;
      if (first_slot >= S::kSlots) first_slot -= S::kSlots;
    }
  }
  // From a tile of an item's queries.
  __device__ __forceinline__ void advance_queries() {
    advance();
    if (kCircle && S::kParts == 1 && S::kQueryTiles == 1) step = kStages - step;
  }
};

// The items of a block: turns of the first rounds in order, the others as they are dealt.
template <class Problem>
class Items {
  static constexpr int32_t kOfTurn = Problem::kSharesRows ? 2 : 1;
  using Args = typename Problem::Args;
  using Shared = SharedMemory<typename Problem::Shape>;

 public:
  // From the first up to before the end.
  static __device__ __forceinline__ int32_t first(const Shared& shared) {
    if constexpr (Problem::kPlanned) return shared.plan.begin.sequence;
    return static_cast<int32_t>(blockIdx.x) * kOfTurn;
  }
  static __device__ __forceinline__ int32_t end(const Args& a, const Shared& shared) {
    if constexpr (Problem::kPlanned) {
      return shared.plan.end_sequence();
    } else {
      return a.num_items;
    }
  }
  static __device__ __forceinline__ auto item(const Args& a, const Shared& shared, int32_t i) {
    if constexpr (Problem::kPlanned) {
      return typename Problem::Item(a, shared.plan, i);
    } else {
      return typename Problem::Item(a, i);
    }
  }
  __device__ __forceinline__ int32_t next(const Args& a, const Shared& shared, int32_t item) {
    if constexpr (Problem::kPlanned) return item + 1;
    if (kOfTurn > 1 && item % kOfTurn == 0) return item + 1;
    int32_t turn = next_in_order(item);
    if constexpr (Problem::kDeals) {
      if (turn >= a.turns_in_order) {
        wait(shared.dealt[place.index], place.parity);
        turn = shared.dealt_turn[place.index];
        place.next();
      }
    }
    return turn * kOfTurn;
  }
  // The turn behind that of an item whose first rows have been asked for, by one thread. Should the first block begin so late that it has
  // not yet set where dealing begins, then what is there ends this block's turns or makes it do another block's again, and the first block
  // still deals out all.
  __device__ __forceinline__ void deal(const Args& a, Shared& shared, int32_t item) const {
    if (next_in_order(item) < a.turns_in_order) return;
    const uint32_t turn = atomicAdd(a.next_turn, 1u), end = static_cast<uint32_t>(a.num_items) / kOfTurn;
    shared.dealt_turn[place.index] = static_cast<int32_t>(min(turn, end));
    ptx::mbarrier_arrive(ptx::shared_address(&shared.dealt[place.index]));
  }

 private:
  static __device__ __forceinline__ int32_t next_in_order(int32_t item) { return item / kOfTurn + static_cast<int32_t>(gridDim.x); }
  Turn<kDealt> place;
};

// Eight lanes of the output times a factor.
__device__ __forceinline__ void store_lanes(uint16_t* target, const float (&v)[8], float factor, bool aligned) {
  const auto pair = [&](int i) { return ptx::cvt_bf16x2(v[i] * factor, v[i + 1] * factor); };
  const uint32_t w[4] = {pair(0), pair(2), pair(4), pair(6)};
  if (aligned) {
    *reinterpret_cast<uint4*>(target) = {w[0], w[1], w[2], w[3]};
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) target[i] = static_cast<uint16_t>(w[i / 2] >> (16 * (i % 2)));
  }
}

}  // namespace strata::cuda::sparse_prefill
