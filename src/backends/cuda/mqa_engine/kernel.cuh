// Attention to rows that are key and value at once, of bf16 or turned into it, on Hopper: sparse prefill from gathered rows, sparse and
// dense decode from the pages. A block takes items of 64 heads of one token, one after the other. A Problem says what the items, their rows
// and their results are.
//
// Arithmetic of a tile of 64 rows and 64 heads, cycles of one SM (D = 512):
//   tensor cores   logits 64 x 64 x 512 and values the same, at 2048 bf16 FMA a cycle                             1024 + 1024 = 2048
//   shared memory  128 B a cycle: rows written 512; logits read rows 512 and a quarter of the queries 128;
//                  values read rows 512 and weights 256; weights written 64                                                  1984
//   L2             64 KB: 32 B a cycle and SM, 7.4 TB/s at 1.75 GHz
//   issue slots    softmax: 4096 ex2 at 16 a cycle, products, maxima, sums, conversions                                about 600
// Three quarters of the queries stay in registers: there is no room for them in shared memory, and they would be asked of it at every tile.
// Reached: 2600 to 3000 cycles a tile (docs/kernels/20261121-sparse-prefill.md); the logits role, which does not multiply during its
// softmax, is what a tile waits for.
//
// Roles: warpgroup 0 logits and softmax; 1 and 2 a half of the value lanes each; 3 producer. The values of tile t - 1 are added while the
// softmax of tile t runs. The queries of the next item come through the ring of stages like a tile, so that it starts while the values of
// the last one are still added and stored. Where the rows of a token fit into two stages, one block takes both items of its 65 to 128
// heads in turn from the same rows.
#pragma once

#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/mqa_engine/logits.cuh"
#include "backends/cuda/mqa_engine/producer.cuh"
#include "backends/cuda/mqa_engine/values.cuh"

namespace strata::cuda::sparse_prefill {

// A loop of its own for parts: asked of every item, whether it is one costs whole items 0.25 us.
template <template <class> class Role, class Problem, class... Which>
__device__ __forceinline__ void run_role(const typename Problem::Args& a, SharedMemory<typename Problem::Shape>& shared, Which... which) {
  if constexpr (Problem::kPartsFirst) {
    Role<typename Problem::Parts> parts(a.parts, shared, which...);
    parts.run();
    Role<Problem>(a, parts).run();
  } else {
    Role<Problem>(a, shared, which...).run();
  }
}

template <class Problem>
__global__ void __launch_bounds__(kThreads, 1) row_tiles_kernel(const __grid_constant__ typename Problem::Args a) {
  using S = typename Problem::Shape;
  if constexpr (Problem::kLetsOthersBegin) ptx::launch_dependents();  // whose blocks find a place when these end
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<typename Problem::Shape>*>(shared_bytes);
  if (threadIdx.x == 0) {
    constexpr uint32_t kWarps = kWarpgroup / 32 * kWarpArrivals;
    for (int i = 0; i < kStages; ++i) {
      for (int j = 0; j < S::kFills; ++j) ptx::mbarrier_init(ptx::shared_address(&shared.full[i][j]), kWarpgroup + kWarps);
    }
    for (int i = 0; i < S::kSlots; ++i) ptx::mbarrier_init(ptx::shared_address(&shared.empty[i]), S::kPartReaders * kWarps);
    for (int i = 0; i < S::kWeightTiles; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.rescale_full[i]), kWarps);
      ptx::mbarrier_init(ptx::shared_address(&shared.weights_full[i]), kWarps);
      ptx::mbarrier_init(ptx::shared_address(&shared.weights_empty[i]), 2 * kWarps);
    }
    for (int i = 0; i < 2; ++i) ptx::mbarrier_init(ptx::shared_address(&shared.normalizer_full[i]), kWarps);
    if constexpr (Problem::kDeals) {
      for (int i = 0; i < kDealt; ++i) ptx::mbarrier_init(ptx::shared_address(&shared.dealt[i]), 1);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (Problem::kPlanned) {
    Problem::start(a, shared);
  } else if constexpr (Problem::kStartsEarly) {
    Problem::bring_near(a);
    ptx::wait_for_previous_kernel();
  }
  if constexpr (Problem::kDeals) {
    if (blockIdx.x == 0 && threadIdx.x == 0 && a.next_turn != nullptr) {
      atomicExch(a.next_turn, static_cast<uint32_t>(a.turns_in_order));
    }
  }
  constexpr Registers kOfRole = Problem::kCodes ? kCodedRegisters : kRegisters;
  const int role = own_warpgroup();
  if (role == 0) {
    shared.sink[threadIdx.x] = Problem::sink(a, static_cast<int>(threadIdx.x));  // this role's alone
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
