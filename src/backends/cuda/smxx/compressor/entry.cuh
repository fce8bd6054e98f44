// What the two compression kernels have in common: which tokens a block looks at, the state rows of a window, and what becomes of the
// pooled vector.
#pragma once

#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/common/hadamard.cuh"
#include "backends/cuda/common/store_row.cuh"
#include "backends/cuda/smxx/compressor/store_part.cuh"
#include "formats/rope.h"
#include "ops/compressor/compressor_window.h"
#include "strata/ops/compressor.h"

namespace strata::cuda {

struct CompressArgs {
  PagedCache state, cache;
  const int32_t* block_table;
  int64_t table_stride, table_rows, table_columns;
  const int32_t* token_to_req;
  const int64_t* positions;
  const int64_t* state_slots;
  const int64_t* out_slots;
  int64_t num_tokens;
  const float* norm_weight;
  float eps;
  const float* cos_sin;
  int64_t cos_sin_stride, num_angles;
  int32_t rotary;
  bool hadamard;
};

// A token that completes an entry.
struct Boundary {
  int64_t position;
  int32_t request;
  int64_t out_slot;
};

// How tokens are looked at: values, or guesses while the kernel in front may still run (touch.cuh).
struct ReadValue {
  template <class T>
  __device__ __forceinline__ T operator()(const T* p) const {
    return *p;
  }
};
struct ReadGuess {
  template <class T>
  __device__ __forceinline__ T operator()(const T* p) const {
    return guess(p);
  }
};

// Group g of G looks at the tokens g, g + G, g + 2G, ... and calls body(boundary) for those that complete an entry, until it returns false.
// With an odd G the boundary tokens of a prompt, `ratio` apart, fall to different groups, and so do the neighbouring tokens of a decode
// step. Called by whole warps, all of a block alike.
template <int kRatio, class Read, class Body>
__device__ __forceinline__ void for_each_entry(const CompressArgs& a, int64_t group, int64_t num_groups, const Read& read,
                                               const Body& body) {
  constexpr int kTokens = kRatio == 4 ? 1 : 4;  // that a lane looks at together
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  for (int64_t first = group; first < a.num_tokens; first += kTokens * kWarpSize * num_groups) {
    int64_t t[kTokens], state_slot[kTokens], out_slot[kTokens], position[kTokens];
    int32_t request[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      // No condition in front of a read: all are under way at once. The request brings its line into the cache, for the body.
      t[i] = first + (i * kWarpSize + lane) * num_groups;
      const int64_t there = min(t[i], a.num_tokens - 1);
      state_slot[i] = read(a.state_slots + there);
      out_slot[i] = read(a.out_slots + there);
      position[i] = read(a.positions + there);
      request[i] = read(a.token_to_req + there);
    }
    unsigned completes = 0;  // bit i: the lane's token i
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const bool yes =
          (t[i] < a.num_tokens) & (state_slot[i] >= 0) & (out_slot[i] >= 0) & completes_entry(position[i], kRatio) & (request[i] >= 0);
      completes |= static_cast<unsigned>(yes) << i;
    }
#pragma unroll 1
    for (int i = 0; i < kTokens; ++i) {
      for (unsigned found = __ballot_sync(kAllLanes, completes >> i & 1u); found != 0; found &= found - 1) {
        const int64_t at = first + (i * kWarpSize + __ffs(static_cast<int>(found)) - 1) * num_groups;
        if (!body(Boundary{read(a.positions + at), read(a.token_to_req + at), read(a.out_slots + at)})) return;
      }
    }
  }
}

__device__ __forceinline__ const uint8_t* state_data(const CompressArgs& a) { return static_cast<const uint8_t*>(a.state.data); }

__device__ __forceinline__ int64_t row_of_page(const CompressArgs& a, int64_t page, uint32_t row) {
  return page * a.state.page_stride + int64_t{row} * a.state.row_dim * 4;
}

// Where the row of a position begins, in bytes. Of positions that do not exist, somewhere that can be read.
__device__ __forceinline__ int64_t state_row(const CompressArgs& a, int64_t request, int64_t position) {
  const PagePlace at = place_on_page(max(position, int64_t{0}), a.state.page_size);
  return row_of_page(a, max(a.block_table[request * a.table_stride + at.page], 0), at.row);
}

// The same of what may not be true yet; 0, where a row is, if it cannot be.
__device__ __forceinline__ int64_t guess_state_row(const CompressArgs& a, int64_t request, int64_t position) {
  if (request < 0 || request >= a.table_rows) return 0;
  const PagePlace at = place_on_page(max(position, int64_t{0}), a.state.page_size);
  if (at.page >= a.table_columns) return 0;
  const int64_t page = max(guess(a.block_table + request * a.table_stride + at.page), 0);
  return page < a.state.num_pages ? row_of_page(a, page, at.row) : 0;
}

// Brings `bytes` bytes of a row's values from `begin` on near, and of its scores, if it is the turn of thread `first` of `threads`.
__device__ __forceinline__ void touch_row_part(const CompressArgs& a, int64_t begin, int32_t bytes, int first, int threads) {
  constexpr int32_t kLine = 128;
  const uint8_t* const values = state_data(a) + begin;
#pragma unroll
  for (int32_t offset = first * kLine; offset < bytes; offset += threads * kLine) {
    touch(values + offset);
    touch(values + offset + int64_t{a.state.row_dim} * 2);
  }
}

// Norm, rotation, Hadamard and cache row of a pooled vector, in fp32 until it is stored. The block's first kThreads threads have kChannels
// channels each, thread i those from kChannels * i on: whole pairs of rotary lanes.
template <int kDim, int kBlockThreads>
class Finisher {
 public:
  // All the threads of the block; of an indexer's row one warp.
  static constexpr int kChannels = kDim == 512 ? kDim / kBlockThreads : kDim / kWarpSize, kThreads = kDim / kChannels;
  struct Shared {
    float entry[kDim];
    float squares[2][kThreads / kWarpSize];  // for one entry and the next
  };

  // Brings near what an entry needs besides its state rows.
  static __device__ __forceinline__ void touch_all(const CompressArgs& a, const Boundary& boundary, int32_t ratio) {
    if (threadIdx.x >= kThreads) return;
    touch(a.norm_weight + kChannels * threadIdx.x);
    if (threadIdx.x >= kWarpSize) return;
    const int64_t position = compressor_window(boundary.position, ratio).rope_position;
    touch_angles(a.cos_sin, a.cos_sin_stride, a.num_angles, a.rotary, position, static_cast<int>(threadIdx.x));
    if (threadIdx.x == 0) touch_row(a.cache, boundary.out_slot);
  }

  // Asks for what store() needs: to be called before something else is waited for.
  __device__ __forceinline__ void prepare(const CompressArgs& a, const Boundary& boundary, int32_t ratio) {
    if (threadIdx.x >= kThreads) return;
    uint32_t words[kChannels];
    load_words(reinterpret_cast<const uint8_t*>(a.norm_weight + kChannels * threadIdx.x), words);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) weight_[i] = __uint_as_float(words[i]);
    out_ = row_address(a.cache, boundary.out_slot);
    const int begin = kDim - a.rotary;
    const float* const row = a.cos_sin + compressor_window(boundary.position, ratio).rope_position * a.cos_sin_stride;
#pragma unroll
    for (int i = 0; i < kChannels / 2; ++i) {
      const int channel = kChannels * static_cast<int>(threadIdx.x) + 2 * i, pair = (channel - begin) / 2;
      const bool rotary = channel >= begin;
      cosine_[i] = rotary ? row[pair] : 1.0f;
      sine_[i] = rotary ? row[a.rotary / 2 + pair] : 0.0f;
    }
  }

  // The whole block calls it; all of its warps but the first, or all that have no channels, may be elsewhere when it returns.
  __device__ __forceinline__ void store(const CompressArgs& a, float (&u)[kChannels], Shared& shared) {
    const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = static_cast<int>(threadIdx.x / kWarpSize);
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) square = fmaf(u[i], u[i], square);
    square = lanes_sum(square);
    if constexpr (kThreads == kWarpSize) {
      if (warp > 0) return;
      turn(u, square, a.eps);
      if (a.hadamard) {
#pragma unroll
        for (int i = 0; i < kChannels; ++i) u[i] = round_to_bf16(u[i]);
        hadamard_lanes<kWarpSize>(u, lane);
      }
      store_row(a.cache, out_, u, lane);
    } else {
      float(&squares)[kThreads / kWarpSize] = shared.squares[turn_++ % 2];
      if (threadIdx.x < kThreads && lane == 0) squares[warp] = square;
      __syncthreads();
      if (threadIdx.x >= kThreads) return;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kThreads / kWarpSize; ++i) sum += squares[i];
      turn(u, sum, a.eps);
      store_part(a.cache, out_, u, kChannels * static_cast<int>(threadIdx.x), lane);
    }
  }

 private:
  __device__ __forceinline__ void turn(float (&u)[kChannels], float sum_of_squares, float eps) const {
    const float scale = rsqrtf(sum_of_squares / static_cast<float>(kDim) + eps);
#pragma unroll
    for (int i = 0; i < kChannels / 2; ++i) {
      const float first = u[2 * i] * scale * weight_[2 * i], second = u[2 * i + 1] * scale * weight_[2 * i + 1];
      u[2 * i] = first * cosine_[i] - second * sine_[i];
      u[2 * i + 1] = second * cosine_[i] + first * sine_[i];
    }
  }

  float weight_[kChannels], cosine_[kChannels / 2], sine_[kChannels / 2];  // channels that are not rotary: turned by 0
  RowAddress out_;
  unsigned turn_ = 0;
};

}  // namespace strata::cuda
