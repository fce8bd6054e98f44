// The producer: a warpgroup that copies rows of q and attended rows into the ring, as they are, by 16-byte cp.async.
// Eight lanes copy 128 consecutive bytes into one swizzled row of a chunk, which hits every bank once.
#pragma once

#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/sm90/sparse_prefill/pipeline.cuh"

namespace strata::cuda::sparse_prefill {

// 16 bytes of any alignment of 2; zeros when not wanted.
__device__ __forceinline__ void copy_narrow(uint32_t shared, const uint16_t* global, bool wanted) {
  uint32_t w[4] = {};
  if (wanted) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = uint32_t{global[2 * i]} | uint32_t{global[2 * i + 1]} << 16;
  }
  ptx::st_shared(shared, {w[0], w[1], w[2], w[3]});
}

// This lane's eighth of every chunk of a row to its place in a stage; zeros when not wanted, and nothing is read then.
// kOnce: nobody else reads the row, so that it is the first to leave L2.
template <int kDim, bool kOnce>
__device__ __forceinline__ void copy_row(uint32_t shared, const uint16_t* row, bool wanted, bool aligned) {
  using S = Shape<kDim>;
  if (aligned) {
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      if constexpr (kOnce) {
        ptx::cp_async_16_or_zero(shared + c * S::kChunkBytes, row + c * kChunkLanes, wanted ? 16 : 0, ptx::evict_first_policy());
      } else {
        ptx::cp_async_16_or_zero(shared + c * S::kChunkBytes, row + c * kChunkLanes, wanted ? 16 : 0);
      }
    }
  } else {
#pragma unroll 1
    for (int c = 0; c < S::kChunks; ++c) copy_narrow(shared + c * S::kChunkBytes, row + c * kChunkLanes, wanted);
  }
}

template <class Problem>
class Producer {
  static constexpr int kDim = Problem::kDim;
  using S = Shape<kDim>;
  using Args = typename Problem::Args;
  using Item = typename Problem::Item;
  using Rows = typename Problem::Rows;

 public:
  __device__ __forceinline__ Producer(const Args& args, SharedMemory<kDim>& memory)
      : a(args), shared(memory), warp(threadIdx.x % kWarpgroup / 32), lane(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    for (int32_t i = first_item<Problem>(); i < a.num_items; i = next_item<Problem>(i)) {
      const Item item(a, i);
      if constexpr (Problem::kSplit) {
        if (item.tiles == 0) continue;
      }
      stage.start_item();
      if constexpr (Problem::kSharesRows) {
        if (item.last_of_rows()) {  // the first item's are there
          produce_queries(item, 0);
          continue;
        }
      }
      const Rows rows(a, item);
      // A tile ahead of its use. Lane l has the entry of the warp's row l.
      int32_t entry = look_up(rows, 0);
#pragma unroll 1
      for (int t = 0; t < S::kQueryTiles; ++t) produce_queries(item, t);
#pragma unroll 1
      for (int32_t t = 0; t < item.tiles; ++t) {
        const int32_t present = entry;
        entry = look_up(rows, t + 1);
        produce_rows(rows, present, t);
      }
    }
  }

 private:
  __device__ __forceinline__ int32_t look_up(const Rows& rows, int32_t tile) const {
    return rows.look_up(lane < S::kRowsPerWarp, tile * S::kRows + warp * S::kRowsPerWarp + lane);
  }

  // Where this lane's unit of the warp's row 4 j + lane / 8 goes in the first chunk of the stage.
  __device__ __forceinline__ uint32_t target(int j) const {
    const int row = warp * S::kRowsPerWarp + 4 * j + lane / 8;
    return ptx::shared_address(shared.k[stage.at]) + unit_offset(row, lane % 8);
  }

  __device__ __forceinline__ void finish_stage() {
    const uint32_t full = ptx::shared_address(&shared.full[stage.at]);
    if (a.rows_aligned) {
      ptx::cp_async_arrive(full);
    } else {
      ptx::mbarrier_arrive(full);
    }
    arrive_warp(shared.full[stage.at]);  // for what is not cp.async: attended
  }

  __device__ __forceinline__ void produce_queries(const Item& item, int tile) {
    wait(shared.empty[stage.at], stage.parity() ^ 1u);
    const uint16_t* q = a.q + item.token * a.q_token_stride + 8 * (lane % 8);
#pragma unroll 1
    for (int j = 0; j < S::kRowsPerWarp / 4; ++j) {
      const int row = tile * S::kRows + warp * S::kRowsPerWarp + 4 * j + lane / 8, head = item.first_head + row;
      const bool wanted = row < kHeadTile && head < a.num_heads;
      copy_row<kDim, true>(target(j), q + (wanted ? head : 0) * a.q_head_stride, wanted, a.rows_aligned);
    }
    finish_stage();
    stage.advance_queries();
  }

  __device__ __forceinline__ void produce_rows(const Rows& rows, int32_t entry, int32_t tile) {
    const bool attended = rows.attended(entry);
    const uint32_t mask = __ballot_sync(~0u, attended);
    wait(shared.empty[stage.at], stage.parity() ^ 1u);
    if (lane == 0) shared.attended[stage.at][warp] = static_cast<uint16_t>(mask);
    const uint32_t place = attended ? rows.locate(entry, tile * S::kRows + warp * S::kRowsPerWarp + lane) : 0;
#pragma unroll
    for (int j = 0; j < S::kRowsPerWarp / 4; ++j) {
      const int row = 4 * j + lane / 8;
      const uint32_t place_of_row = __shfl_sync(~0u, place, row);
      const bool wanted = (mask >> row & 1u) != 0;
      copy_row<kDim, false>(target(j), rows.address(place_of_row) + 8 * (lane % 8), wanted, a.rows_aligned);
    }
    finish_stage();
    stage.advance();
  }

  const Args& a;
  SharedMemory<kDim>& shared;
  const int warp, lane;
  StagePosition<Problem> stage;
};

}  // namespace strata::cuda::sparse_prefill
