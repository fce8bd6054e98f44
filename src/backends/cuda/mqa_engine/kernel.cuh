// Attention over rows that are both key and value, in bf16 or converted to it, on Hopper: sparse prefill over gathered rows, sparse and
// dense decode over pages. A CTA processes items of 64 heads of one token, one after the other. A Problem defines the items, their rows and
// their results.
//
// Arithmetic of a tile of 64 rows and 64 heads, cycles of one SM (D = 512):
//   tensor cores   logits 64 x 64 x 512 and values the same, at 2048 bf16 FMA a cycle                             1024 + 1024 = 2048
//   shared memory  128 B a cycle: rows written 512; logits read rows 512 and a quarter of the queries 128;
//                  values read rows 512 and weights 256; weights written 64                                                  1984
//   L2             64 KB: 32 B a cycle and SM, 7.4 TB/s at 1.75 GHz
//   issue slots    softmax: 4096 ex2 at 16 a cycle, products, maxima, sums, conversions                                about 600
// Three quarters of the queries stay in registers: shared memory has no room for them, and would have to deliver them for every tile.
// Reached: 2600 to 3000 cycles a tile (docs/kernels/sparse_attn_prefill.md). The critical role is logits, which does not multiply during
// its softmax.
//
// Roles: warpgroup 0: logits and softmax; 1 and 2: half of the value dimensions each; 3: producer. The values of tile t - 1 are added while
// the softmax of tile t runs. The next item's queries pass through the ring like a tile, so that the item starts while the last values are
// still added and stored. Where a token's rows fit into two stages, one CTA computes both items of its 65 to 128 heads, one after the
// other, from the same rows.
#pragma once

#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/mqa_engine/logits.cuh"
#include "backends/cuda/mqa_engine/producer.cuh"
#include "backends/cuda/mqa_engine/values.cuh"

namespace strata::cuda::sparse_prefill {

// Splits have a loop of their own: testing every item for being a split would cost whole items 0.25 us.
template <template <class> class Role, class Problem, class... Which>
__device__ __forceinline__ void run_role(const typename Problem::Args& a, SharedMemory<typename Problem::Shape>& shared, Which... which) {
  if constexpr (Problem::kSplitsFirst) {
    Role<typename Problem::Splits> splits(a.splits, shared, which...);
    splits.run();
    Role<Problem>(a, splits).run();
  } else {
    Role<Problem>(a, shared, which...).run();
  }
}

template <class Problem>
__global__ void __launch_bounds__(kThreads, 1) row_tiles_kernel(const __grid_constant__ typename Problem::Args a) {
  using S = typename Problem::Shape;
  if constexpr (Problem::kLaunchesDependentsAtStart) ptx::launch_dependents();  // CTAs of the next kernel are scheduled when these end
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<typename Problem::Shape>*>(shared_bytes);
  if (threadIdx.x == 0) {
    constexpr uint32_t kWarps = kWarpgroup / 32 * kWarpArrivals;
    for (int i = 0; i < kStages; ++i) {
      for (int j = 0; j < S::kFills; ++j) ptx::mbarrier_init(ptx::shared_address(&shared.full[i][j]), kWarpgroup + kWarps);
    }
    for (int i = 0; i < S::kSlots; ++i) ptx::mbarrier_init(ptx::shared_address(&shared.empty[i]), S::kSlotReaders * kWarps);
    for (int i = 0; i < S::kWeightTiles; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.rescale_full[i]), kWarps);
      ptx::mbarrier_init(ptx::shared_address(&shared.weights_full[i]), kWarps);
      ptx::mbarrier_init(ptx::shared_address(&shared.weights_empty[i]), 2 * kWarps);
    }
    for (int i = 0; i < 2; ++i) ptx::mbarrier_init(ptx::shared_address(&shared.normalizer_full[i]), kWarps);
    if constexpr (Problem::kDynamicSchedule) {
      for (int i = 0; i < kWorkQueueSlots; ++i) ptx::mbarrier_init(ptx::shared_address(&shared.work_ready[i]), 1);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (Problem::kPlanned) {
    Problem::start(a, shared);
  } else if constexpr (Problem::kStartsEarly) {
    Problem::prefetch(a);
    ptx::wait_for_previous_kernel();
  }
  if constexpr (Problem::kDynamicSchedule) {
    if (blockIdx.x == 0 && threadIdx.x == 0 && a.next_iteration != nullptr) {
      atomicExch(a.next_iteration, static_cast<uint32_t>(a.static_iterations));
    }
  }
  constexpr Registers kOfRole = Problem::kQuantized ? kQuantizedRegisters : kRegisters;
  const int role = own_warpgroup();
  if (role == 0) {
    shared.sink[threadIdx.x] = Problem::sink(a, static_cast<int>(threadIdx.x));  // used by this role only
    static_assert(sizeof(shared.sink) == kWarpgroup * sizeof(float));
    ptx::registers_grow<kOfRole.logits>();
    run_role<Logits, Problem>(a, shared);
  } else if (role < 3) {
    ptx::registers_grow<kOfRole.values>();
    run_role<Values, Problem>(a, shared, role - 1);
  } else {
    ptx::registers_shrink<kOfRole.producer>();
    run_role<Producer, Problem>(a, shared);
  }
}

}  // namespace strata::cuda::sparse_prefill
