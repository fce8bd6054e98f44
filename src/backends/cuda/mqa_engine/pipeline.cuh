// Shared by the roles of the kernel: the rings, and addresses in shared memory.
#pragma once

#include <cstddef>

#include "backends/cuda/device/pipeline_state.cuh"
#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/mqa_engine/config.h"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/ptx/wgmma_offset.cuh"

namespace strata::cuda::sparse_prefill {

struct TileState {
  uint32_t stage = 0;
  uint32_t parities = 0, step = 1;
  uint32_t first_slot = 0, slot_parities = 0;
};

// The stage of a tile, its slots, and the parities of their phases.
//
// Where a slot holds a whole tile, stages are used in a circle whose direction reverses with every item, after its queries. So the stage of
// an item's last tile, from which the output is stored, is the last to be refilled. Two consecutive tiles never have the same stage,
// because the values of one wait for the logits of the next. Where two items share their rows, the first stage is for queries; the others
// are for rows, which stay for the second item.
template <class Problem>
class TilePosition : public TileState {
  using S = typename Problem::Shape;
  using Shared = SharedMemory<typename Problem::Shape>;
  static constexpr bool kCircle = !Problem::kSharesRows;

 public:
  TilePosition() = default;
  __device__ __forceinline__ explicit TilePosition(const TileState& before) : TileState(before) {}
  __device__ __forceinline__ uint32_t parity() const { return parities >> stage & 1u; }
  // The previous stage, where the direction never reverses.
  __device__ __forceinline__ uint32_t last() const { return stage == 0 ? kStages - 1 : stage - 1; }
  __device__ __forceinline__ uint32_t slot(int i) const {
    if (S::kTileSlots == 1) return stage;
    const uint32_t s = first_slot + i;
    return s >= S::kSlots ? s - S::kSlots : s;
  }
  __device__ __forceinline__ uint32_t slot_parity(int i) const { return S::kTileSlots == 1 ? parity() : slot_parities >> slot(i) & 1u; }
  // Address of a chunk of the tile.
  __device__ __forceinline__ uint8_t* chunk(Shared& shared, int c) const {
    return c < S::kTileSlots * S::kSlotChunks ? shared.k[slot(c / S::kSlotChunks)][c % S::kSlotChunks] : shared.weights[stage];
  }
  // The same, relative to the first slot in units of 16 bytes, as in descriptors.
  __device__ __forceinline__ uint32_t chunk_offset(int c) const {
    if (c >= S::kTileSlots * S::kSlotChunks) return (offsetof(Shared, weights) - offsetof(Shared, k)) / 16 + stage * (kHeadChunkBytes / 16);
    return slot(c / S::kSlotChunks) * static_cast<uint32_t>(sizeof(Shared::k[0]) / 16) + c % S::kSlotChunks * (S::kChunkBytes / 16);
  }

  __device__ __forceinline__ void start_item() {
    if (!kCircle) stage = 0;
  }
  // Advances from a tile. stays: the next item reuses the tile.
  __device__ __forceinline__ void advance(bool stays = false) {
    if (!stays) parities ^= 1u << stage;
    stage += step;
    if (kCircle && stage >= kStages) stage -= kStages;
    if constexpr (S::kTileSlots > 1) {
      constexpr uint32_t kOnes = (1u << S::kTileSlots) - 1;
      slot_parities ^= (kOnes << first_slot | kOnes >> (S::kSlots - first_slot)) & ((1u << S::kSlots) - 1);
      first_slot += S::kTileSlots;
      if (first_slot >= S::kSlots) first_slot -= S::kSlots;
    }
  }
  // Advances from a tile of an item's queries.
  __device__ __forceinline__ void advance_queries() {
    advance();
    if (kCircle && S::kTileSlots == 1 && S::kQueryTiles == 1) step = kStages - step;
  }
};

// The items of a CTA: the first iterations in fixed order, the others as assigned dynamically.
template <class Problem>
class ItemScheduler {
  static constexpr int32_t kItemsPerIteration = Problem::kSharesRows ? 2 : 1;
  using Args = typename Problem::Args;
  using Shared = SharedMemory<typename Problem::Shape>;

 public:
  // Items run from first() up to, but not including, end().
  static __device__ __forceinline__ int32_t first(const Shared& shared) {
    if constexpr (Problem::kPlanned) return shared.plan.begin.sequence;
    return static_cast<int32_t>(blockIdx.x) * kItemsPerIteration;
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
    if (kItemsPerIteration > 1 && item % kItemsPerIteration == 0) return item + 1;
    int32_t iteration = next_static(item);
    if constexpr (Problem::kDynamicSchedule) {
      if (iteration >= a.static_iterations) {
        wait(shared.work_ready[queue.index], queue.parity);
        iteration = shared.work_queue[queue.index];
        queue.next();
      }
    }
    return iteration * kItemsPerIteration;
  }
  // Assigns the iteration after an item whose first rows have been requested, by one thread. If the first CTA starts so late that it has
  // not yet initialised the counter, then the stale value either ends this CTA's iterations or makes it repeat another CTA's. The first CTA
  // still assigns all of them.
  __device__ __forceinline__ void schedule_next(const Args& a, Shared& shared, int32_t item) const {
    if (next_static(item) < a.static_iterations) return;
    const uint32_t iteration = atomicAdd(a.next_iteration, 1u), end = static_cast<uint32_t>(a.num_items) / kItemsPerIteration;
    shared.work_queue[queue.index] = static_cast<int32_t>(min(iteration, end));
    ptx::mbarrier_arrive(ptx::shared_address(&shared.work_ready[queue.index]));
  }

 private:
  static __device__ __forceinline__ int32_t next_static(int32_t item) {
    return item / kItemsPerIteration + static_cast<int32_t>(gridDim.x);
  }
  PipelineState<kWorkQueueSlots> queue;
};

// Stores eight dimensions of the output times a factor.
__device__ __forceinline__ void store_dims(uint16_t* target, const float (&v)[8], float factor, bool aligned) {
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
