// The logits role: one warpgroup multiplies queries and keys, and turns logits into weights.
#pragma once

#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/wgmma_bf16.cuh"
#include "backends/cuda/sm90/sparse_prefill/cluster_merge.cuh"

namespace strata::cuda::sparse_prefill {

// Named barrier; 0 is __syncthreads.
inline constexpr uint32_t kLogitsGroup = 1;

template <class Problem>
class Logits {
  using S = typename Problem::Shape;
  using Args = typename Problem::Args;
  using Item = typename Problem::Item;
  using Shared = SharedMemory<typename Problem::Shape>;
  static constexpr int kSums = S::kRows / 2;  // logits of a thread: two heads, kRows / 4 rows each

 public:
  __device__ __forceinline__ Logits(const Args& args, Shared& memory) : a(args), shared(memory) {}
  // Goes on where other items ended.
  template <class Before>
  __device__ __forceinline__ Logits(const Args& args, const Before& before)
      : a(args), shared(before.shared), tile(before.tile), weights(before.weights), items(before.items) {}

  __device__ __forceinline__ void run() {
    for (int32_t i = first_item<Problem>(); i < a.num_items; i = next_item<Problem>(i)) {
      const Item item(a, i);
      if constexpr (Problem::kSplit) {
        if (item.tiles == 0) {
          mark_empty(item);
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
        softmax(s);
        store_weights(s);
        start_logits(s);
        // The values of the tile before begin when these logits are nearly done, and run while they become weights.
        ptx::wgmma_wait<1>();
        hand_over();
        finish_logits(s);
      }
      softmax(s);
      store_weights(s);
      ptx::fence_proxy_async();
      hand_over();
      finish(item);
    }
  }

 private:
  template <class>
  friend class Logits;

  // From the ring: the first chunks to registers, as fragments; the others to shared.q.
  __device__ __forceinline__ void load_queries() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = 16 * warp * 128;
    ptx::barrier_sync(kLogitsGroup, kWarpgroup);  // all warps are done with shared.q
#pragma unroll 1
    for (int t = 0; t < S::kQueryTiles; ++t) {
#pragma unroll
      for (int i = 0; i < S::kFills; ++i) wait(shared.full[tile.at][i], tile.parity());
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
      // In the name of the value warpgroups, which do not look at queries.
#pragma unroll
      for (int i = 0; i < S::kParts * S::kPartReaders; ++i) arrive_warp(shared.empty[tile.slot(i / S::kPartReaders)]);
      if constexpr (S::kTail) {
        arrive_warp(shared.weights_empty[tile.at]);
        arrive_warp(shared.weights_empty[tile.at]);
      }
      tile.advance_queries();
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(kLogitsGroup, kWarpgroup);
  }

  __device__ __forceinline__ void clear_state() {
#pragma unroll
    for (int r = 0; r < 2; ++r) subtracted[r] = -INFINITY, sum[r] = 0.0f;
  }

  // Logits of the next tile, the last two chunks of lanes in a group of their own. Not waited for.
  __device__ __forceinline__ void start_logits(float (&s)[kSums]) {
    wait(shared.full[tile.at][0], tile.parity());
    ptx::fence_proxy_async();  // cp.async, and store_weights, wrote what wgmma reads
    ptx::wgmma_hold(s);
    ptx::wgmma_fence();
    if constexpr (S::kTail) {
      multiply_shared(s, S::kValueChunks, false);
    } else {
#pragma unroll
      for (int c = S::kRegisterChunks; c < S::kChunks; ++c) multiply_shared(s, c, c > S::kRegisterChunks);
    }
#pragma unroll
    for (int c = 0; c < S::kRegisterChunks; ++c) {
      const uint64_t keys = descriptor(c);
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::wgmma_bf16(s, q[4 * c + i], keys + 2 * i, true);
      if (c == S::kRegisterChunks - (S::kTail ? 1 : 3)) ptx::wgmma_commit();
    }
    if constexpr (S::kTail) {  // the last part arrives last
      wait(shared.full[tile.at][1], tile.parity());
      ptx::fence_proxy_async();
#pragma unroll
      for (int c = S::kRegisterChunks; c < S::kValueChunks; ++c) multiply_shared(s, c, true);
    }
    ptx::wgmma_commit();
    attended = attended_rows();
    tile.advance(rows_stay);
  }
  __device__ __forceinline__ uint64_t descriptor(int c) const { return ptx::wgmma_descriptor(ptx::shared_address(tile.chunk(shared, c))); }
  // A chunk whose queries are in shared memory; 32 bytes an instruction.
  __device__ __forceinline__ void multiply_shared(float (&s)[kSums], int c, bool more) {
    const uint64_t queries = ptx::wgmma_descriptor(ptx::shared_address(shared.q[c - S::kRegisterChunks])), keys = descriptor(c);
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::wgmma_bf16(s, queries + 2 * i, keys + 2 * i, more || i > 0);
  }
  __device__ __forceinline__ void finish_logits(float (&s)[kSums]) {
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(s);
  }

  // Logits to weights in place, relative to the running maximum itself: the weight of a row that dominates is then exactly 1. A maximum
  // that may lag behind saves rescaling, but that weight is rounded to bf16.
  __device__ __forceinline__ void softmax(float (&s)[kSums]) {
    mask_missing(s);
    float largest[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
      for (int j = 1; j < kSums / 4; ++j) largest[r] = fmaxf(largest[r], fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    }
    rescale[0] = rescale[1] = 1.0f;
    // One vote where the maximum of a head would be four shuffles, each waiting for the one before: this is the critical path.
    if (__any_sync(~0u, largest[0] * a.scale_log2 > subtracted[0] || largest[1] * a.scale_log2 > subtracted[1])) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float of_head = quad_max(largest[r]) * a.scale_log2;
        if (of_head > subtracted[r]) {
          rescale[r] = ptx::ex2(subtracted[r] - of_head);
          subtracted[r] = of_head;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float offset = subtracted[r] == -INFINITY ? 0.0f : -subtracted[r];
      float added = 0.0f;
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) {
        float& first = s[4 * j + 2 * r];
        float& second = s[4 * j + 2 * r + 1];
        first = ptx::ex2(fmaf(first, a.scale_log2, offset));
        second = ptx::ex2(fmaf(second, a.scale_log2, offset));
        added += first + second;
      }
      sum[r] = sum[r] * rescale[r] + added;
    }
  }
  static __device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
  }

  // Which rows of the tile in the present stage are attended: bit i is row i.
  __device__ __forceinline__ uint64_t attended_rows() const {
    uint64_t rows = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) rows |= uint64_t{shared.attended[tile.at][w]} << (S::kRowsPerWarp * w);
    return rows;
  }
  __device__ __forceinline__ void mask_missing(float (&s)[kSums]) const {
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

  // Weights as bf16 [head][row], swizzled, and what the sums so far are multiplied by: that is done while the next logits run.
  __device__ __forceinline__ void store_weights(const float (&s)[kSums]) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
    if constexpr (S::kTail) {
      ptx::barrier_sync(kLogitsGroup, kWarpgroup);  // all warps are done with the tile's last lanes, which are there
    } else {
      wait(shared.weights_empty[weights.index], weights.parity ^ 1u);
    }
    const uint32_t target = ptx::shared_address(shared.weights[S::kTail ? tile.last() : weights.index]);
#pragma unroll
    for (int i = 0; i < kSums / 8; ++i) {
      ptx::stmatrix_x4(target + unit_offset(row, 2 * i + lane / 16), ptx::cvt_bf16x2(s[8 * i], s[8 * i + 1]),
                       ptx::cvt_bf16x2(s[8 * i + 2], s[8 * i + 3]), ptx::cvt_bf16x2(s[8 * i + 4], s[8 * i + 5]),
                       ptx::cvt_bf16x2(s[8 * i + 6], s[8 * i + 7]));
    }
    if (lane % 4 == 0) {
      shared.rescale[weights.index][accumulator_row()] = rescale[0];
      shared.rescale[weights.index][accumulator_row() + 8] = rescale[1];
    }
    arrive_warp(shared.rescale_full[weights.index]);
  }

  // The stored weights to the value warpgroups, behind a fence: that of the next logits will do, a second one costs 1.2 to 1.7 %.
  __device__ __forceinline__ void hand_over() {
    arrive_warp(shared.weights_full[weights.index]);
    weights.next();
  }

  __device__ __forceinline__ void mark_empty(const Item& item) {
    if constexpr (Problem::kInCluster) {
      if (threadIdx.x < kHeadTile) part_lse(shared)[threadIdx.x] = -INFINITY;
      arrive_warp(shared.normalizer_full[items.index]);
    } else {
      Problem::mark_empty(a, item);
    }
  }

  // lse, maximum and normalizer of the item's heads. After the last weights, which wait for none of that. Two lanes of a quad have a head
  // each: the next item waits until this is done.
  __device__ __forceinline__ void finish(const Item& item) {
    float total[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
      total[r] += __shfl_xor_sync(~0u, total[r], 2);
    }
    const bool second = threadIdx.x % 2 != 0, wanted = threadIdx.x % 4 < 2;
    const int row = accumulator_row() + (second ? 8 : 0), head = item.first_head + row;
    const float of_head = second ? total[1] : total[0], maximum = second ? subtracted[1] : subtracted[0];
    if (wanted) {
      shared.normalizer[items.index][row] = head < a.num_heads ? Problem::normalizer(maximum, of_head, shared.sink[head]) : 0.0f;
      if constexpr (Problem::kInCluster) part_lse(shared)[row] = of_head == 0.0f ? -INFINITY : maximum + __log2f(of_head);
    }
    arrive_warp(shared.normalizer_full[items.index]);
    items.next();
    if (wanted && head < a.num_heads) Problem::store_sums(a, item, head, maximum, of_head);
  }

  const Args& a;
  Shared& shared;
  TilePosition<Problem> tile;
  Turn<S::kWeightTiles> weights;
  Turn<2> items;
  uint32_t q[S::kRegisterChunks * 4][4];
  bool rows_stay = false;  // for the next item
  uint64_t attended;       // of the tile whose logits were started last
  // Of this thread's two heads.
  float subtracted[2];  // the running maximum, in base 2 with the scale: what weights are relative to
  float sum[2];         // of this thread's rows
  float rescale[2];
};

}  // namespace strata::cuda::sparse_prefill
