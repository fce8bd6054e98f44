// The logits role: one warpgroup multiplies queries and keys, and converts logits to softmax weights.
#pragma once

#include "backends/cuda/mqa_engine/cluster_combine.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/wgmma_bf16.cuh"

namespace strata::cuda::sparse_prefill {

// Named barrier; 0 is __syncthreads.
inline constexpr uint32_t kLogitsGroup = 1;

template <class Problem>
class Logits {
  using S = typename Problem::Shape;
  using Args = typename Problem::Args;
  using Item = typename Problem::Item;
  using Shared = SharedMemory<typename Problem::Shape>;
  static constexpr int kSums = S::kRows / 2;  // logits per thread: two heads, kRows / 4 rows each

 public:
  __device__ __forceinline__ Logits(const Args& args, Shared& memory) : a(args), shared(memory) {}
  // Continues after the items of another problem.
  template <class Before>
  __device__ __forceinline__ Logits(const Args& args, const Before& before)
      : a(args), shared(before.shared), tile(before.tile), weights(before.weights), items(before.items) {}

  __device__ __forceinline__ void run() {
    ItemScheduler<Problem> scheduler;
    for (int32_t i = scheduler.first(shared), end = scheduler.end(a, shared); i < end; i = scheduler.next(a, shared, i)) {
      const Item item = scheduler.item(a, shared, i);
      if constexpr (Problem::kSplit) {
        if (item.tiles == 0) {
          Problem::mark_empty(a, item);
          continue;
        }
      }
      tile.start_item();
      if constexpr (Problem::kSharesRows) rows_stay = !item.last_of_rows();
      load_queries();
      clear_state();
      float s[kSums];
      start_logits(s);
      finish_logits(s);
      for (int32_t t = 1; t < item.tiles; ++t) {
        mask_unseen(s, item, t - 1);
        softmax(s);
        store_weights(s);
        start_logits(s);
        // The values of the previous tile start when these logits are nearly done, and run during the softmax.
        ptx::wgmma_wait<1>();
        signal_weights();
        finish_logits(s);
      }
      mask_unseen(s, item, item.tiles - 1);
      softmax(s);
      store_weights(s);
      ptx::fence_proxy_async();
      signal_weights();
      finish(item);
    }
  }

 private:
  template <class>
  friend class Logits;

  // Reads the queries from the ring: the first chunks to registers, as fragments; the others to shared.q.
  __device__ __forceinline__ void load_queries() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = 16 * warp * 128;
    ptx::barrier_sync(kLogitsGroup, kWarpgroup);  // all warps have finished with shared.q
#pragma unroll 1
    for (int t = 0; t < S::kQueryTiles; ++t) {
#pragma unroll
      for (int i = 0; i < S::kFills; ++i) wait(shared.full[tile.stage][i], tile.parity());
      const int first_byte = own - t * S::kRows * 128;
      if (S::kQueryTiles == 1 || (first_byte >= 0 && first_byte < S::kRows * 128)) {
        const int fragment = first_byte + lane / 4 * 128 + lane % 4 * 4;
#pragma unroll
        for (int i = 0; i < S::kRegisterChunks * 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {  // (row, k), (row + 8, k), (row, k + 8), (row + 8, k + 8)
            const int unit = (2 * (i % 4) + j / 2) ^ (lane / 4);
            q[i][j] = *reinterpret_cast<const uint32_t*>(tile.chunk(shared, i / 4) + fragment + j % 2 * 1024 + 16 * unit);
          }
        }
#pragma unroll
        for (int c = 0; c < S::kSharedChunks; ++c) {
          const uint32_t source = ptx::shared_address(tile.chunk(shared, S::kRegisterChunks + c)) + first_byte + lane * 16;
          const uint32_t target = ptx::shared_address(shared.q[c]) + own + lane * 16;
#pragma unroll
          for (int j = 0; j < 4; ++j) ptx::st_shared(target + 512 * j, ptx::ld_shared(source + 512 * j));
        }
      }
      // Releases the slots in place of the value warpgroups, which do not read queries.
#pragma unroll
      for (int i = 0; i < S::kTileSlots * S::kSlotReaders; ++i) arrive_warp(shared.empty[tile.slot(i / S::kSlotReaders)]);
      if constexpr (S::kTail) {
        arrive_warp(shared.weights_empty[tile.stage]);
        arrive_warp(shared.weights_empty[tile.stage]);
      }
      tile.advance_queries();
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(kLogitsGroup, kWarpgroup);
  }

  __device__ __forceinline__ void clear_state() {
#pragma unroll
    for (int r = 0; r < 2; ++r) maximum[r] = kLowest, sum[r] = 0.0f;
  }

  // Starts the logits of the next tile, the last two chunks of dimensions as a separate wgmma group. Does not wait.
  __device__ __forceinline__ void start_logits(float (&s)[kSums]) {
    wait(shared.full[tile.stage][0], tile.parity());
    ptx::fence_proxy_async();  // wgmma reads what cp.async and store_weights wrote
    ptx::wgmma_hold(s);
    ptx::wgmma_fence();
    // Alternates steps with queries in shared memory, which read shared memory twice as much, and steps with queries in registers.
    constexpr int kFirstShared = S::kTail ? S::kValueChunks : S::kRegisterChunks;
    constexpr int kShared = kSteps * (S::kChunks - kFirstShared), kAll = kShared + kSteps * S::kRegisterChunks, kPeriod = kAll / kShared;
    static_assert(kPeriod * kShared == kAll);
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      if (i % kPeriod == 0) {
        multiply_shared(s, kSteps * kFirstShared + i / kPeriod, i > 0);
      } else {
        const int step = i - i / kPeriod - 1;
        ptx::wgmma_bf16(s, q[step], keys(step), true);
      }
      if (i == kAll - 1 - (S::kTail ? 0 : 2 * kSteps)) ptx::wgmma_commit();
    }
    if constexpr (S::kTail) {  // the last slot arrives last
      wait(shared.full[tile.stage][1], tile.parity());
      ptx::fence_proxy_async();
#pragma unroll
      for (int step = kSteps * S::kRegisterChunks; step < kSteps * S::kValueChunks; ++step) multiply_shared(s, step, true);
    }
    ptx::wgmma_commit();
    attended = attended_rows();
    tile.advance(rows_stay);
  }
  // An instruction takes a step of 32 bytes.
  static constexpr int kSteps = 4;  // of a chunk
  __device__ __forceinline__ uint64_t keys(int step) const {
    return ptx::offset(first_keys, tile.chunk_offset(step / kSteps) + step % kSteps * kStepOffset);
  }
  // A step whose queries are in shared memory.
  __device__ __forceinline__ void multiply_shared(float (&s)[kSums], int step, bool more) {
    const int chunk = step / kSteps - S::kRegisterChunks;
    ptx::wgmma_bf16(s, ptx::offset(first_queries, chunk * (kHeadChunkBytes / 16) + step % kSteps * kStepOffset), keys(step), more);
  }
  static constexpr uint32_t kStepOffset = 32 / 16;
  __device__ __forceinline__ void finish_logits(float (&s)[kSums]) {
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(s);
  }

  // Converts logits to weights in place, relative to the exact running maximum: the weight of a dominating row is then exactly 1. A stale
  // maximum would save rescaling, but would round that weight to bf16.
  __device__ __forceinline__ void softmax(float (&s)[kSums]) {
    mask_unattended(s);
    update_running_max(s);
    float added[2];
#pragma unroll
    for (int i = 0; i < kSums / 2; ++i) {  // rows in order: the first weights are stored while the last are computed
      const int r = i % 2;
      float &first = s[2 * i], &second = s[2 * i + 1];
      first = ptx::ex2(fmaf(first, a.scale_log2, -maximum[r]));
      second = ptx::ex2(fmaf(second, a.scale_log2, -maximum[r]));
      added[r] = i < 2 ? first + second : added[r] + (first + second);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += added[r];
  }
  // Updates the running maximum with these logits. Publishes the factor that rescales earlier sums, for the value warpgroups, before the
  // exponentials, so that the fence after the weights does not wait for it.
  __device__ __forceinline__ void update_running_max(const float (&s)[kSums]) {
    float largest[4] = {s[0], s[1], s[2], s[3]};  // separate chains: this is the critical path
#pragma unroll
    for (int j = 4; j < kSums; ++j) largest[j % 4] = fmaxf(largest[j % 4], s[j]);
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float new_max = fmaxf(maximum[r], quad_max(fmaxf(largest[2 * r], largest[2 * r + 1])) * a.scale_log2);
      rescale[r] = ptx::ex2(maximum[r] - new_max);
      maximum[r] = new_max;
      sum[r] *= rescale[r];
    }
    if constexpr (!S::kTail) wait(shared.weights_empty[weights.index], weights.parity ^ 1u);
    if (threadIdx.x % 4 == 0) {
      shared.rescale[weights.index][accumulator_row()] = rescale[0];
      shared.rescale[weights.index][accumulator_row() + 8] = rescale[1];
    }
    arrive_warp(shared.rescale_full[weights.index]);
  }
  static __device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
  }

  // Which rows of the tile in the current stage are attended: bit i is row i.
  __device__ __forceinline__ uint64_t attended_rows() const {
    uint64_t rows = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) rows |= uint64_t{shared.attended[tile.stage][w]} << (S::kRowsPerWarp * w);
    return rows;
  }
  __device__ __forceinline__ void mask_unattended(float (&s)[kSums]) const {
    if (attended == ~uint64_t{0} >> (64 - S::kRows)) return;
    const uint64_t own = attended >> (2 * (threadIdx.x % 4));
    const uint32_t half[2] = {static_cast<uint32_t>(own), static_cast<uint32_t>(own >> 32)};
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const uint32_t bits = half[j / 4] >> (8 * (j % 4));
      if ((bits & 1u) == 0) s[4 * j] = s[4 * j + 2] = -INFINITY;
      if ((bits & 2u) == 0) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
    }
  }

  // Where queries of a tile see different numbers of rows: masks the logits of the item's t-th tile. A weight of 0 does not stop a NaN or
  // an infinity, which must not reach queries that do not see its row. So rows with such values become zeros. For queries that see such a
  // row the logits are NaN, or -inf, which has weight 0.
  __device__ __forceinline__ void mask_unseen(float (&s)[kSums], const Item& item, int32_t t) {
    if constexpr (Problem::kMixesQueries) {
      static_assert(S::kTileSlots == 1);
      if (t < item.open) return;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t seen = Problem::seen(a, item, item.first_head + accumulator_row() + 8 * r) - t * S::kRows - 2 * (threadIdx.x % 4);
#pragma unroll
        for (int j = 0; j < kSums / 4; ++j) {
          if (8 * j >= seen) s[4 * j + 2 * r] = -INFINITY;
          if (8 * j + 1 >= seen) s[4 * j + 2 * r + 1] = -INFINITY;
        }
      }
      const uint32_t stage = tile.stage >= tile.step ? tile.stage - tile.step : tile.stage + kStages - tile.step;
      clear_infinite_rows(ptx::shared_address(shared.k[stage]), Problem::seen(a, item, item.first_head) - t * S::kRows);
    }
  }
  // For a tile whose logits are complete, from row `first` on.
  static __device__ __noinline__ void clear_infinite_rows(uint32_t rows, int32_t first) {
    constexpr uint32_t kExponents = 0x7F807F80u;
    ptx::barrier_sync(kLogitsGroup, kWarpgroup);  // the logits of all warps are complete
    const int lane = threadIdx.x % 32, unit = lane % 8;
    for (int row = max(first, 0) + static_cast<int>(threadIdx.x / 32); row < S::kRows; row += kWarpgroup / 32) {
      uint32_t infinite = 0;
#pragma unroll
      for (int c = lane / 8; c < S::kValueChunks; c += 4) {
        const uint4 v = ptx::ld_shared(rows + c * S::kChunkBytes + unit_offset(row, unit));
        for (const uint32_t pair : {v.x, v.y, v.z, v.w}) infinite |= __vcmpeq2(pair & kExponents, kExponents);
      }
      if (!__any_sync(~0u, infinite != 0)) continue;
#pragma unroll
      for (int c = lane / 8; c < S::kValueChunks; c += 4) {
        ptx::st_shared(rows + c * S::kChunkBytes + unit_offset(row, unit), {0, 0, 0, 0});
      }
    }
  }

  // Stores the weights as bf16 [head][row], swizzled.
  __device__ __forceinline__ void store_weights(const float (&s)[kSums]) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
    if constexpr (S::kTail) ptx::barrier_sync(kLogitsGroup, kWarpgroup);  // all warps have read the tile's last dimensions here
    const uint32_t target = ptx::shared_address(shared.weights[S::kTail ? tile.last() : weights.index]);
#pragma unroll
    for (int i = 0; i < kSums / 8; ++i) {
      ptx::stmatrix_x4(target + unit_offset(row, 2 * i + lane / 16), ptx::cvt_bf16x2(s[8 * i], s[8 * i + 1]),
                       ptx::cvt_bf16x2(s[8 * i + 2], s[8 * i + 3]), ptx::cvt_bf16x2(s[8 * i + 4], s[8 * i + 5]),
                       ptx::cvt_bf16x2(s[8 * i + 6], s[8 * i + 7]));
    }
  }

  // Signals the stored weights to the value warpgroups, after a fence: the next logits' fence suffices, a second one costs 1.2 to 1.7 %.
  __device__ __forceinline__ void signal_weights() {
    arrive_warp(shared.weights_full[weights.index]);
    weights.next();
  }

  // Computes lse, maximum and normalizer of the item's heads, after the last weights, which do not wait for these. Two lanes of a quad have
  // a head each. The next item waits until this is done.
  __device__ __forceinline__ void finish(const Item& item) {
    float total[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
      total[r] += __shfl_xor_sync(~0u, total[r], 2);
    }
    const bool second = threadIdx.x % 2 != 0, has_head = threadIdx.x % 4 < 2;
    const int row = accumulator_row() + (second ? 8 : 0), head = item.first_head + row;
    const float of_head = second ? total[1] : total[0], top = second ? maximum[1] : maximum[0];
    const float largest = of_head == 0.0f || top == kLowest ? -INFINITY : top;  // no rows, or only NaN logits
    if (has_head) {
      const bool exists = Problem::exists(a, item, head);
      float normalizer = exists ? Problem::normalizer(largest, of_head, Problem::kMixesQueries ? -INFINITY : shared.sink[head]) : 0.0f;
      if constexpr (Problem::kQuantized) normalizer *= a.value_scale;
      shared.normalizer[items.index][row] = normalizer;
      if constexpr (Problem::kInCluster) {
        if (shared.plan.combines) split_lse(shared)[row] = of_head == 0.0f ? -INFINITY : largest + __log2f(of_head);
      }
    }
    arrive_warp(shared.normalizer_full[items.index]);
    items.next();
    if constexpr (Problem::kInCluster) {
      if (shared.plan.combines) return;  // the combine step stores them
    }
    if (has_head && Problem::exists(a, item, head)) Problem::store_sums(a, item, head, largest, of_head);
  }

  const Args& a;
  Shared& shared;
  const uint64_t first_keys = ptx::wgmma_descriptor(ptx::shared_address(shared.k));
  const uint64_t first_queries = ptx::wgmma_descriptor(ptx::shared_address(shared.q));
  TilePosition<Problem> tile;
  PipelineState<S::kWeightTiles> weights;
  PipelineState<2> items;
  uint32_t q[S::kRegisterChunks * 4][4];
  bool rows_stay = false;  // for the next item
  uint64_t attended;       // of the tile whose logits were started last
  // Of this thread's two heads.
  static constexpr float kLowest = -3.402823466e38f;  // finite, because -inf - -inf is NaN
  float maximum[2];                                   // running maximum, in base 2 with the scale: weights are relative to it
  float sum[2];                                       // of this thread's rows
};

}  // namespace strata::cuda::sparse_prefill
