// What the two compression kernels have in common: which tokens a block looks at, the state rows of a window, their pooling, and what
// becomes of the pooled vector.
#pragma once

#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/common/hadamard.cuh"
#include "backends/cuda/common/store_row.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "formats/rope.h"
#include "ops/compressor/compressor_window.h"
#include "strata/ops/compressor.h"

namespace strata::cuda {

struct CompressArgs {
  PagedCache state, cache;
  const int32_t* block_table;
  int64_t table_stride;
  const int32_t* token_to_req;
  const int64_t* positions;
  const int64_t* state_slots;
  const int64_t* out_slots;
  int64_t num_tokens;
  const float* norm_weight;
  float eps;
  const float* cos_sin;
  int64_t cos_sin_stride;
  int32_t rotary;
  bool hadamard;
  int64_t table_entries;  // elements up to the end of the last request's
};

// Into L2, and their pages into the SM's tables, while the kernel in front may still run: what this block's first tokens are and where
// their rows may lie. The values are not used, so that it does not matter if they are still written.
__device__ __forceinline__ void touch_first(const CompressArgs& a, int64_t group, int64_t num_groups) {
  constexpr int kLine = 32;  // numbers
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kWarpSize) {
    const int64_t t = group + thread * num_groups;
    if (t < a.num_tokens) {
      touch(a.state_slots + t);
      touch(a.out_slots + t);
      touch(a.positions + t);
      touch(a.token_to_req + t);
    }
  }
  if (int64_t{thread} * kLine < a.table_entries) touch(a.block_table + thread * kLine);
}

// Group g of G looks at the tokens g, g + G, g + 2G, ... and calls body(position, request, out_slot) for those that complete an entry.
// With an odd G the boundary tokens of a prompt, `ratio` apart, fall to different groups, and so do the neighbouring tokens of a decode
// step. Called by whole warps, all of a block alike.
template <int kRatio, class Body>
__device__ __forceinline__ void for_each_entry(const CompressArgs& a, int64_t group, int64_t num_groups, const Body& body) {
  constexpr int kTokens = kRatio == 4 ? 1 : 4;  // that a lane looks at together
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  for (int64_t first = group; first < a.num_tokens; first += kTokens * kWarpSize * num_groups) {
    unsigned completes = 0;  // bit i: the lane's token i
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int64_t t = first + (i * kWarpSize + lane) * num_groups;
      if (t >= a.num_tokens) continue;
      const bool yes = (a.state_slots[t] >= 0) & (a.out_slots[t] >= 0) & completes_entry(a.positions[t], kRatio);
      // The request is always there: this brings it into the cache together with the rest, for the body.
      completes |= static_cast<unsigned>(yes & (a.token_to_req[t] >= 0)) << i;
    }
#pragma unroll 1
    for (int i = 0; i < kTokens; ++i) {
      for (unsigned found = __ballot_sync(kAllLanes, completes >> i & 1u); found != 0; found &= found - 1) {
        const int64_t t = first + (i * kWarpSize + __ffs(static_cast<int>(found)) - 1) * num_groups;
        body(a.positions[t], a.token_to_req[t], a.out_slots[t]);
      }
    }
  }
}

// Null for a position that does not exist.
__device__ __forceinline__ const uint8_t* state_row(const CompressArgs& a, int64_t request, int64_t position) {
  if (position < 0) return nullptr;
  const int64_t block = position / a.state.page_size, row = position - block * a.state.page_size;
  const int64_t page = max(a.block_table[request * a.table_stride + block], 0);
  return static_cast<const uint8_t*>(a.state.data) + page * a.state.page_stride + row * a.state.row_dim * 4;
}

// A part of a softmax-weighted sum: weights are relative to exp(weight_base(peak)).
struct Pooled {
  float peak, sum, weighted;
};

// A peak of -inf (no row, or only such scores) counts as 0: its sum is 0 then, as it should be, and not NaN.
__device__ __forceinline__ float weight_base(float peak) { return peak == -INFINITY ? 0.0f : peak; }

constexpr float kLog2E = 1.44269504088896341f;

// exp(score - base). The rounding of base * log2(e) is the same factor in every weight of a channel.
__device__ __forceinline__ float weight_of(float score, float base) { return ptx::ex2(fmaf(score, kLog2E, -base * kLog2E)); }

__device__ __forceinline__ Pooled merge(const Pooled& a, const Pooled& b) {
  const float peak = fmaxf(a.peak, b.peak), base = weight_base(peak);
  const float fa = weight_of(a.peak, base), fb = weight_of(b.peak, base);
  return {peak, a.sum * fa + b.sum * fb, a.weighted * fa + b.weighted * fb};
}

// The number of state rows whose values a thread has in flight: their loads are all under way before the first is waited for.
constexpr int kRowsInFlight = 4;

// Adds to `pooled` four channels of kRowsInFlight state rows. The address of row i is `row` of lane first_lane + i (null: no such row);
// the four values are at float `column` of the row, their scores half a row further. kAligned: both at multiples of 16 bytes.
template <bool kAligned>
__device__ __forceinline__ void pool_rows(const CompressArgs& a, const uint8_t* row, int first_lane, int column, Pooled (&pooled)[4]) {
  uint32_t value[kRowsInFlight][4] = {}, score[kRowsInFlight][4];
  const int64_t score_offset = int64_t{a.state.row_dim} * 2;
#pragma unroll
  for (int i = 0; i < kRowsInFlight; ++i) {
    const auto address = __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(row), first_lane + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) score[i][j] = 0xFF800000u;  // -inf: no weight
    if (address == 0) continue;
    const uint8_t* const values = reinterpret_cast<const uint8_t*>(address) + 4 * column;
    if constexpr (kAligned) {
      const uint4 v = *reinterpret_cast<const uint4*>(values), s = *reinterpret_cast<const uint4*>(values + score_offset);
      value[i][0] = v.x, value[i][1] = v.y, value[i][2] = v.z, value[i][3] = v.w;
      score[i][0] = s.x, score[i][1] = s.y, score[i][2] = s.z, score[i][3] = s.w;
    } else {
      load_words(values, value[i]);
      load_words(values + score_offset, score[i]);
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float peak = __uint_as_float(score[0][j]);
#pragma unroll
    for (int i = 1; i < kRowsInFlight; ++i) peak = fmaxf(peak, __uint_as_float(score[i][j]));
    const float base = weight_base(peak);
    Pooled part{peak, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const float weight = weight_of(__uint_as_float(score[i][j]), base);
      part.sum += weight;
      part.weighted = fmaf(weight, __uint_as_float(value[i][j]), part.weighted);
    }
    pooled[j] = merge(pooled[j], part);
  }
}

// Norm, rotation, Hadamard and cache row of a pooled vector, in fp32 until store_row rounds. The block's first kDim / 4 threads have four
// channels each, thread i those from 4 i on. What they need besides is under way while the state rows are read.
template <int kDim>
class Finisher {
 public:
  static constexpr int kThreads = kDim / 4;
  struct Shared {
    float entry[kDim];
    float squares[kThreads / kWarpSize];
  };

  __device__ __forceinline__ explicit Finisher(const CompressArgs& a) {
    if (threadIdx.x >= kThreads) return;
    uint32_t words[4];
    load_words(reinterpret_cast<const uint8_t*>(a.norm_weight + 4 * threadIdx.x), words);
#pragma unroll
    for (int i = 0; i < 4; ++i) weight_[i] = __uint_as_float(words[i]);
  }

  __device__ __forceinline__ void load_angles(const CompressArgs& a, int64_t position, int32_t ratio) {
    const int begin = kDim - a.rotary;
    const float* const row = a.cos_sin + compressor_window(position, ratio).rope_position * a.cos_sin_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int channel = 4 * static_cast<int>(threadIdx.x) + 2 * i, pair = (channel - begin) / 2;
      const bool rotary = channel >= begin && channel < kDim;
      cosine_[i] = rotary ? row[pair] : 1.0f;
      sine_[i] = rotary ? row[a.rotary / 2 + pair] : 0.0f;
    }
  }

  // The whole block calls it.
  __device__ __forceinline__ void store(const CompressArgs& a, float (&u)[4], int64_t out_slot, Shared& shared) const {
    const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = static_cast<int>(threadIdx.x / kWarpSize);
    const float square = lanes_sum(u[0] * u[0] + u[1] * u[1] + u[2] * u[2] + u[3] * u[3]);
    if constexpr (kThreads == kWarpSize) {
      if (warp > 0) return;
      turn(u, scale_of(square, a.eps));
      if (a.hadamard) {
#pragma unroll
        for (int i = 0; i < 4; ++i) u[i] = round_to_bf16(u[i]);
        hadamard_lanes<kWarpSize>(u, lane);
      }
      store_row(a.cache, out_slot, u, lane);
    } else {
      if (threadIdx.x < kThreads && lane == 0) shared.squares[warp] = square;
      __syncthreads();
      if (threadIdx.x < kThreads) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kThreads / kWarpSize; ++i) sum += shared.squares[i];
        turn(u, scale_of(sum, a.eps));
        *reinterpret_cast<float4*>(shared.entry + 4 * threadIdx.x) = make_float4(u[0], u[1], u[2], u[3]);
      }
      __syncthreads();
      if (warp > 0) return;
      constexpr int kValues = kDim / kWarpSize;
      float row[kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i) row[i] = shared.entry[lane * kValues + i];
      store_row(a.cache, out_slot, row, lane);
    }
  }

 private:
  static __device__ __forceinline__ float scale_of(float sum_of_squares, float eps) {
    return 1.0f / sqrtf(sum_of_squares / static_cast<float>(kDim) + eps);
  }
  __device__ __forceinline__ void turn(float (&u)[4], float scale) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float first = u[2 * i] * scale * weight_[2 * i], second = u[2 * i + 1] * scale * weight_[2 * i + 1];
      u[2 * i] = first * cosine_[i] - second * sine_[i];
      u[2 * i + 1] = second * cosine_[i] + first * sine_[i];
    }
  }

  float weight_[4], cosine_[2], sine_[2];  // channels that are not rotary: turned by 0
};

}  // namespace strata::cuda
