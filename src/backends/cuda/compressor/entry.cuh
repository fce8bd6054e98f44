// What the two compression kernels have in common: which tokens a block looks at, the state rows of a window, and what becomes of the
// pooled vector.
#pragma once

#include "backends/cuda/compressor/store_part.cuh"
#include "backends/cuda/device/hadamard.cuh"
#include "backends/cuda/device/store_words.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "formats/rope.h"
#include "contracts/compressor_window.h"
#include "strata/ops/compressor.h"

namespace strata::cuda {

struct CompressArgs {
  PagedCache state, cache;
  PageSize state_page_size;
  CacheRows rows;  // of cache
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
  bool words;  // rows of the cache are of words (store_words.cuh)
};

inline CompressArgs compress_args(const CompressNormRopeStoreParams& p) {
  return {.state = p.state,
          .cache = p.cache,
          .state_page_size = PageSize(p.state.page_size),
          .rows = CacheRows(p.cache),
          .block_table = p.block_table.ptr<int32_t>(),
          .table_stride = p.block_table.stride[0],
          .table_rows = p.block_table.shape[0],
          .table_columns = p.block_table.shape[1],
          .token_to_req = p.token_to_req.ptr<int32_t>(),
          .positions = p.positions.ptr<int64_t>(),
          .state_slots = p.state_slots.ptr<int64_t>(),
          .out_slots = p.out_slots.ptr<int64_t>(),
          .num_tokens = p.positions.shape[0],
          .norm_weight = p.norm_weight.ptr<float>(),
          .eps = p.eps,
          .cos_sin = p.cos_sin.ptr<float>(),
          .cos_sin_stride = p.cos_sin.stride[0],
          .num_angles = p.cos_sin.shape[0],
          .rotary = static_cast<int32_t>(p.cos_sin.shape[1]),
          .hadamard = p.hadamard,
          .words = rows_of_words(p.cache)};
}

// "cuda/smxx", which takes everything.
namespace smxx {
void save(const SavePartialStatesParams& p, const ExecutionContext& context);
void compress(const CompressNormRopeStoreParams& p, const ExecutionContext& context);
}  // namespace smxx

// The copy engine, and wide loads, take rows at multiples of 16 bytes.
inline bool state_rows_aligned(const PagedCache& state) {
  return reinterpret_cast<uintptr_t>(state.data) % 16 == 0 && state.page_stride % 16 == 0;
}

// At most `most` groups, and an odd number of them where they are fewer than the tokens (GroupTokens).
inline int64_t entry_groups(int64_t num_tokens, int64_t most) { return num_tokens <= most ? num_tokens : (most - 1) | 1; }

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

// Group g of G looks at the tokens g, g + G, g + 2G, .... With an odd G the boundary tokens of a prompt, `ratio` apart, fall to different
// groups, and so do the neighbouring tokens of a decode step. By whole warps, all of a block alike. kTokens: that a lane looks at together;
// of many tokens these are neighbours, whose slots lie in one sector of memory, and G counts such runs.
template <int kRatio, int kTokens = 1, class Read = ReadValue>
class GroupTokens {
 public:
  __device__ __forceinline__ GroupTokens(const CompressArgs& a, int64_t group, int64_t num_groups)
      : a_(a), first_(group), step_(num_groups), runs_(kTokens > 1 && a.num_tokens > kWarpSize * num_groups) {}
  // Asks for the first tokens: nothing waits for them before for_each.
  __device__ __forceinline__ void ask() {
    const Read read;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int64_t there = min(index(i, lane()), a_.num_tokens - 1);  // no condition in front of a read: all are under way at once
      state_slot_[i] = read(a_.state_slots + there);
      out_slot_[i] = read(a_.out_slots + there);
      position_[i] = read(a_.positions + there);
      request_[i] = read(a_.token_to_req + there);
    }
  }

  // body(token, boundary) for those that complete an entry, until it returns false.
  template <class Body>
  __device__ __forceinline__ void for_each(const Body& body) {
    for (;;) {
      unsigned completes = 0;  // bit i: the lane's token i
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const bool yes = (index(i, lane()) < a_.num_tokens) & (state_slot_[i] >= 0) & (out_slot_[i] >= 0) &
                         completes_entry(position_[i], kRatio) & (request_[i] >= 0);
        completes |= static_cast<unsigned>(yes) << i;
      }
#pragma unroll 1
      for (int i = 0; i < kTokens; ++i) {
        for (unsigned found = __ballot_sync(kAllLanes, completes >> i & 1u); found != 0; found &= found - 1) {
          const int from = __ffs(static_cast<int>(found)) - 1;
          if (!body(index(i, from), Boundary{of(position_, i, from), of(request_, i, from), of(out_slot_, i, from)})) return;
        }
      }
      first_ += (runs_ ? 1 : kTokens) * kWarpSize * step_;
      if (index(0, 0) >= a_.num_tokens) return;
      ask();
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % kWarpSize); }
  __device__ __forceinline__ int64_t index(int i, int lane) const {
    return runs_ ? (first_ + lane * step_) * kTokens + i : first_ + (i * kWarpSize + lane) * step_;
  }
  template <class T>
  static __device__ __forceinline__ T of(const T (&values)[kTokens], int i, int lane) {
    T value = values[0];
#pragma unroll
    for (int k = 1; k < kTokens; ++k) value = k == i ? values[k] : value;
    return __shfl_sync(kAllLanes, value, lane);
  }
  const CompressArgs& a_;
  int64_t first_, step_;
  bool runs_;
  int64_t state_slot_[kTokens], out_slot_[kTokens], position_[kTokens];
  int32_t request_[kTokens];
};

__device__ __forceinline__ const uint8_t* state_data(const CompressArgs& a) { return static_cast<const uint8_t*>(a.state.data); }

__device__ __forceinline__ int64_t row_of_page(const CompressArgs& a, int64_t page, uint32_t row) {
  return page * a.state.page_stride + int64_t{row} * a.state.row_dim * 4;
}

// Where the row of a position begins, in bytes. Of positions that do not exist, somewhere that can be read.
__device__ __forceinline__ int64_t state_row(const CompressArgs& a, int64_t request, int64_t position) {
  const PagePlace at = a.state_page_size.place(max(position, int64_t{0}));
  return row_of_page(a, max(a.block_table[request * a.table_stride + at.page], 0), at.row);
}

// A group's first entry, and where the lane's state row of it begins, from what tokens and the block table say while they may still be
// written (start_early): what is read for it is asked for before it is known that it is so.
struct Guess {
  int64_t token = -1;  // none
  Boundary boundary{};
  int64_t place = 0;  // of the row's page in the block table
  int32_t page = 0;
  int64_t row = 0;

  // Of a boundary, the lane's row being `back` positions before its last: place, page and row. False where what was read tells that it is
  // not to be believed. By whole warps.
  __device__ __forceinline__ bool find(const CompressArgs& a, const Boundary& b, int64_t back) {
    const PagePlace at = a.state_page_size.place(max(b.position - back, int64_t{0}));
    if (b.request >= a.table_rows || __any_sync(kAllLanes, at.page >= a.table_columns) || b.position >= a.num_angles) return false;
    place = b.request * a.table_stride + at.page;
    page = guess(a.block_table + place);
    if (__any_sync(kAllLanes, page >= a.state.num_pages)) return false;
    boundary = b;
    row = row_of_page(a, max(page, 0), at.row);
    return true;
  }
  // The page as it is now: asked for in front of the rows, behind which it would come late.
  __device__ __forceinline__ int32_t page_now(const CompressArgs& a) const { return token >= 0 ? a.block_table[place] : 0; }
  __device__ __forceinline__ bool is_so(int64_t at, const Boundary& b, int32_t page_now) const {
    const bool same = at == token && b.position == boundary.position && b.request == boundary.request && b.out_slot == boundary.out_slot;
    return same && __all_sync(kAllLanes, page_now == page);
  }
};

// `back`: how far before the boundary the lane's row is.
template <int kRatio, int kTokens = 1, class Meanwhile>
__device__ __forceinline__ Guess guess_first(const CompressArgs& a, int64_t group, int64_t num_groups, int64_t back,
                                             const Meanwhile& meanwhile) {
  Guess guessed;
  GroupTokens<kRatio, kTokens, ReadGuess> tokens(a, group, num_groups);
  tokens.ask();
  tokens.for_each([&](int64_t token, const Boundary& b) {
    if (!guessed.find(a, b, back)) return false;
    guessed.token = token;
    meanwhile(b, guessed.row);
    return false;
  });
  return guessed;
}

// Brings `bytes` bytes of a row's values near, and of its scores, which lie to_scores bytes behind them, if it is the turn of thread
// `first` of `threads`.
__device__ __forceinline__ void touch_row_part(const uint8_t* values, int32_t to_scores, int32_t bytes, int first, int threads) {
  constexpr int32_t kLine = 128;
#pragma unroll
  for (int32_t offset = first * kLine; offset < bytes; offset += threads * kLine) {
    touch(values + offset);
    touch(values + offset + to_scores);
  }
}

// Norm and rotation of kChannels channels of a pooled vector from `column` on: whole pairs of rotary lanes.
template <int kDim, int kChannels>
struct ChannelPart {
  float weight[kChannels], cosine[kChannels / 2], sine[kChannels / 2];  // channels that are not rotary: turned by 0
  RowAddress out;

  // Asks for what turn() needs: to be called before something else is waited for.
  __device__ __forceinline__ void prepare(const CompressArgs& a, const Boundary& boundary, int32_t ratio, int column) {
    prepare_weight(a, column);
    const float* const angles = a.cos_sin + compressor_window(boundary.position, ratio).rope_position * a.cos_sin_stride;
    prepare_place(angles, a.rotary, a.rows.row(boundary.out_slot), column);
  }
  __device__ __forceinline__ void prepare_weight(const CompressArgs& a, int column) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) weight[i] = a.norm_weight[column + i];
  }
  // The entry's angles, and where it is stored.
  __device__ __forceinline__ void prepare_place(const float* angles, int32_t rotary_dim, const RowAddress& to, int column) {
    out = to;
    const int begin = kDim - rotary_dim;
#pragma unroll
    for (int i = 0; i < kChannels / 2; ++i) {
      const int channel = column + 2 * i, pair = (channel - begin) / 2;
      const bool rotary = channel >= begin;
      cosine[i] = rotary ? angles[pair] : 1.0f;
      sine[i] = rotary ? angles[rotary_dim / 2 + pair] : 0.0f;
    }
  }

  // All but the norm's factor, which is the same for all: what is largest before it is so behind it, and found while the sum of squares is.
  __device__ __forceinline__ void turn(float (&u)[kChannels]) const {
#pragma unroll
    for (int i = 0; i < kChannels / 2; ++i) {
      const float first = u[2 * i] * weight[2 * i], second = u[2 * i + 1] * weight[2 * i + 1];
      u[2 * i] = first * cosine[i] - second * sine[i];
      u[2 * i + 1] = second * cosine[i] + first * sine[i];
    }
  }
};

template <int kChannels>
__device__ __forceinline__ float amax_of(const float (&u)[kChannels]) {
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) amax = fmaxf(amax, fabsf(u[i]));
  return amax;
}

// The norm's factor, on a vector and on its largest magnitude.
template <int kDim, int kChannels>
__device__ __forceinline__ void normalise(float (&u)[kChannels], float& amax, float sum_of_squares, float eps) {
  const float scale = rsqrtf(sum_of_squares / static_cast<float>(kDim) + eps);
#pragma unroll
  for (int i = 0; i < kChannels; ++i) u[i] *= scale;
  amax *= scale;
}

// Brings near what an entry needs besides its state rows. By one warp.
template <int kDim>
__device__ __forceinline__ void touch_entry(const CompressArgs& a, const Boundary& boundary, int32_t ratio, int lane) {
  touch(a.norm_weight + kDim / kWarpSize * lane);
  const int64_t position = compressor_window(boundary.position, ratio).rope_position;
  touch_angles(a.cos_sin, a.cos_sin_stride, a.num_angles, a.rotary, position, lane);
  if (lane == 0) a.rows.touch_row(boundary.out_slot);
}

// Norm, rotation, Hadamard and cache row of a pooled vector, in fp32 until it is stored. The block's first kThreads threads have kChannels
// channels each, thread i those from kChannels * i on.
template <int kDim, int kBlockThreads>
class Finisher {
 public:
  // All the threads of the block; of an indexer's row one warp.
  static constexpr int kChannels = kDim == 512 ? kDim / kBlockThreads : kDim / kWarpSize, kThreads = kDim / kChannels;
  struct Shared {
    float squares[2][kThreads / kWarpSize];  // for one entry and the next
  };

  // `entry`: how many this block has finished.
  __device__ __forceinline__ explicit Finisher(unsigned entry = 0) : turn_(entry) {}

  // Asks for what store() needs: to be called before something else is waited for.
  __device__ __forceinline__ void prepare(const CompressArgs& a, const Boundary& boundary, int32_t ratio) {
    if (thread() < kThreads) part_.prepare(a, boundary, ratio, kChannels * thread());
  }
  __device__ __forceinline__ void prepare_weight(const CompressArgs& a) { part_.prepare_weight(a, kChannels * thread()); }
  __device__ __forceinline__ void prepare_place(const float* angles, int32_t rotary, const RowAddress& to) {
    part_.prepare_place(angles, rotary, to, kChannels * thread());
  }

  // The whole block calls it; all of its warps but the first, or all that have no channels, may be elsewhere when it returns.
  __device__ __forceinline__ void store(const CompressArgs& a, float (&u)[kChannels], Shared& shared) {
    const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = thread() / kWarpSize;
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) square = fmaf(u[i], u[i], square);
    part_.turn(u);
    float amax = amax_of(u);
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) {  // a warp has one block of scales
      square += __shfl_xor_sync(kAllLanes, square, step);
      amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
    }
    if constexpr (kThreads == kWarpSize) {
      if (warp > 0) return;
      normalise<kDim>(u, amax, square, a.eps);
      if (a.hadamard) {
#pragma unroll
        for (int i = 0; i < kChannels; ++i) u[i] = round_to_bf16(u[i]);
        hadamard_lanes<kWarpSize>(u, lane);
      }
      if (a.words) {
        uint32_t words[kChannels / 2];
        pack_words(u, words);
        const uint32_t bits = a.hadamard ? amax_bits<kWarpSize>(words) : ptx::cvt_bf16x2(amax, 0.0f) & 0xFFFFu;
        if (bits < kBf16Infinity) return store_indexer(part_.out, words, bits, lane);
      }
      store_row_128(a.cache, part_.out, u, lane);
    } else {
      float(&squares)[kThreads / kWarpSize] = shared.squares[turn_++ % 2];
      if (thread() < kThreads && lane == 0) squares[warp] = square;
      ptx::barrier_sync(1, kBlockThreads);
      if (thread() >= kThreads) return;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kThreads / kWarpSize; ++i) sum += squares[i];
      normalise<kDim>(u, amax, sum, a.eps);
      store_part(a.cache, part_.out, u, amax, kChannels * thread(), lane);
    }
  }

 private:
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) % kBlockThreads; }

  ChannelPart<kDim, kChannels> part_;
  unsigned turn_;
};

}  // namespace strata::cuda
