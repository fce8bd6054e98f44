// Shared by both compression kernels: the assignment of tokens to CTAs, the state rows of a window, and what follows the pooled vector.
#pragma once

#include "backends/cuda/compressor/store_channels.cuh"
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
  bool words;  // rows of the cache consist of words (store_words.cuh)
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

// TMA and wide loads need 16-byte aligned rows.
inline bool state_rows_aligned(const PagedCache& state) {
  return reinterpret_cast<uintptr_t>(state.data) % 16 == 0 && state.page_stride % 16 == 0;
}

// At most `most` groups, and an odd number of them if fewer than the tokens (GroupTokens).
inline int64_t entry_groups(int64_t num_tokens, int64_t most) { return num_tokens <= most ? num_tokens : (most - 1) | 1; }

// A token that completes an entry.
struct Boundary {
  int64_t position;
  int32_t request;
  int64_t out_slot;
};

// How tokens are read: values, or speculatively while the preceding kernel may still run (touch.cuh).
struct ReadValue {
  template <class T>
  __device__ __forceinline__ T operator()(const T* p) const {
    return *p;
  }
};
struct SpeculativeRead {
  template <class T>
  __device__ __forceinline__ T operator()(const T* p) const {
    return speculative_load(p);
  }
};

// Group g of G reads the tokens g, g + G, g + 2G, .... With an odd G the boundary tokens of a prompt, `ratio` apart, fall to different
// groups, and so do neighbouring tokens of a decode step. By whole warps, all of a CTA alike. kTokens: tokens that a lane reads together.
// With many tokens these are neighbours, whose slots lie in one memory sector, and G counts such runs.
template <int kRatio, int kTokens = 1, class Read = ReadValue>
class GroupTokens {
 public:
  __device__ __forceinline__ GroupTokens(const CompressArgs& a, int64_t group, int64_t num_groups)
      : a_(a), first_(group), step_(num_groups), runs_(kTokens > 1 && a.num_tokens > kWarpSize * num_groups) {}
  // Loads the first tokens; nothing waits for them before for_each.
  __device__ __forceinline__ void issue_loads() {
    const Read read;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int64_t there = min(index(i, lane()), a_.num_tokens - 1);  // no condition before a load: all loads are in flight at once
      state_slot_[i] = read(a_.state_slots + there);
      out_slot_[i] = read(a_.out_slots + there);
      position_[i] = read(a_.positions + there);
      request_[i] = read(a_.token_to_req + there);
    }
  }

  // Calls body(token, boundary) for tokens that complete an entry, until it returns false.
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
      issue_loads();
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

// Byte offset of the row of a position. For positions that do not exist, some readable row.
__device__ __forceinline__ int64_t state_row(const CompressArgs& a, int64_t request, int64_t position) {
  const PagePosition at = a.state_page_size.position(max(position, int64_t{0}));
  return row_of_page(a, max(a.block_table[request * a.table_stride + at.page], 0), at.row);
}

// A group's first entry, and the address of the lane's state row of it, according to tokens and block table while they may still be written
// (start_early). Its rows are loaded before they are confirmed.
struct SpeculativeEntry {
  int64_t token = -1;  // none
  Boundary boundary{};
  int64_t table_index = 0;  // of the row's page in the block table
  int32_t page = 0;
  int64_t row = 0;

  // Finds block-table index, page and row for a boundary; the lane's row is `back` positions before the last. False if the data that was
  // read cannot be right. By whole warps.
  __device__ __forceinline__ bool find(const CompressArgs& a, const Boundary& b, int64_t back) {
    const PagePosition at = a.state_page_size.position(max(b.position - back, int64_t{0}));
    if (b.request >= a.table_rows || __any_sync(kAllLanes, at.page >= a.table_columns) || b.position >= a.num_angles) return false;
    table_index = b.request * a.table_stride + at.page;
    page = speculative_load(a.block_table + table_index);
    if (__any_sync(kAllLanes, page >= a.state.num_pages)) return false;
    boundary = b;
    row = row_of_page(a, max(page, 0), at.row);
    return true;
  }
  // The current page: loaded before the rows, after which it would arrive late.
  __device__ __forceinline__ int32_t page_now(const CompressArgs& a) const { return token >= 0 ? a.block_table[table_index] : 0; }
  __device__ __forceinline__ bool holds(int64_t at, const Boundary& b, int32_t page_now) const {
    const bool same = at == token && b.position == boundary.position && b.request == boundary.request && b.out_slot == boundary.out_slot;
    return same && __all_sync(kAllLanes, page_now == page);
  }
};

// `back`: how many positions before the boundary the lane's row is.
template <int kRatio, int kTokens = 1, class Meanwhile>
__device__ __forceinline__ SpeculativeEntry speculate_first(const CompressArgs& a, int64_t group, int64_t num_groups, int64_t back,
                                                            const Meanwhile& meanwhile) {
  SpeculativeEntry speculated;
  GroupTokens<kRatio, kTokens, SpeculativeRead> tokens(a, group, num_groups);
  tokens.issue_loads();
  tokens.for_each([&](int64_t token, const Boundary& b) {
    if (!speculated.find(a, b, back)) return false;
    speculated.token = token;
    meanwhile(b, speculated.row);
    return false;
  });
  return speculated;
}

// Prefetches `bytes` bytes of a row's values, and of its scores to_scores bytes later. Each of `threads` threads, from thread `first` on,
// prefetches a share.
__device__ __forceinline__ void touch_row_channels(const uint8_t* values, int32_t to_scores, int32_t bytes, int first, int threads) {
  constexpr int32_t kLine = 128;
#pragma unroll
  for (int32_t offset = first * kLine; offset < bytes; offset += threads * kLine) {
    touch(values + offset);
    touch(values + offset + to_scores);
  }
}

// Norm and rotation of kChannels channels of a pooled vector from `column` on: whole pairs of rotary dimensions.
template <int kDim, int kChannels>
struct ChannelSlice {
  float weight[kChannels], cosine[kChannels / 2], sine[kChannels / 2];  // channels that are not rotary are rotated by 0
  RowAddress out;

  // Loads what rotate() needs: to be called before other waits.
  __device__ __forceinline__ void prepare(const CompressArgs& a, const Boundary& boundary, int32_t ratio, int column) {
    prepare_weight(a, column);
    const float* const angles = a.cos_sin + compressor_window(boundary.position, ratio).rope_position * a.cos_sin_stride;
    prepare_out(angles, a.rotary, a.rows.row(boundary.out_slot), column);
  }
  __device__ __forceinline__ void prepare_weight(const CompressArgs& a, int column) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) weight[i] = a.norm_weight[column + i];
  }
  // Computes the entry's angles, and where it is stored.
  __device__ __forceinline__ void prepare_out(const float* angles, int32_t rotary_dim, const RowAddress& to, int column) {
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

  // All but the norm's factor, which is the same for all channels: the largest magnitude before it is the largest after it, and is found
  // together with the sum of squares.
  __device__ __forceinline__ void rotate(float (&u)[kChannels]) const {
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

// Applies the norm's factor to a vector and to its largest magnitude.
template <int kDim, int kChannels>
__device__ __forceinline__ void normalise(float (&u)[kChannels], float& amax, float sum_of_squares, float eps) {
  const float scale = rsqrtf(sum_of_squares / static_cast<float>(kDim) + eps);
#pragma unroll
  for (int i = 0; i < kChannels; ++i) u[i] *= scale;
  amax *= scale;
}

// Prefetches what an entry needs besides its state rows. By one warp.
template <int kDim>
__device__ __forceinline__ void touch_entry(const CompressArgs& a, const Boundary& boundary, int32_t ratio, int lane) {
  touch(a.norm_weight + kDim / kWarpSize * lane);
  const int64_t position = compressor_window(boundary.position, ratio).rope_position;
  touch_angles(a.cos_sin, a.cos_sin_stride, a.num_angles, a.rotary, position, lane);
  if (lane == 0) a.rows.touch_row(boundary.out_slot);
}

// Norm, rotation, Hadamard and cache row of a pooled vector, in fp32 until it is stored. The CTA's first kThreads threads have kChannels
// channels each, thread i those from kChannels * i on.
template <int kDim, int kBlockThreads>
class Finisher {
 public:
  // All threads of the CTA; for an indexer's row one warp.
  static constexpr int kChannels = kDim == 512 ? kDim / kBlockThreads : kDim / kWarpSize, kThreads = kDim / kChannels;
  struct Shared {
    float squares[2][kThreads / kWarpSize];  // for one entry and the next
  };

  // `entry`: number of entries that this CTA has finished.
  __device__ __forceinline__ explicit Finisher(unsigned entry = 0) : exchange_(entry) {}

  // Loads what store() needs: to be called before other waits.
  __device__ __forceinline__ void prepare(const CompressArgs& a, const Boundary& boundary, int32_t ratio) {
    if (thread() < kThreads) slice_.prepare(a, boundary, ratio, kChannels * thread());
  }
  __device__ __forceinline__ void prepare_weight(const CompressArgs& a) { slice_.prepare_weight(a, kChannels * thread()); }
  __device__ __forceinline__ void prepare_out(const float* angles, int32_t rotary, const RowAddress& to) {
    slice_.prepare_out(angles, rotary, to, kChannels * thread());
  }

  // Called by the whole CTA. When it returns, all of its warps except the first, or all without channels, may already be elsewhere.
  __device__ __forceinline__ void store(const CompressArgs& a, float (&u)[kChannels], Shared& shared) {
    const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = thread() / kWarpSize;
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) square = fmaf(u[i], u[i], square);
    slice_.rotate(u);
    float amax = amax_of(u);
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) {  // a warp has one quantisation block
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
        if (bits < kBf16Infinity) return store_indexer(slice_.out, words, bits, lane);
      }
      store_row_128(a.cache, slice_.out, u, lane);
    } else {
      float(&squares)[kThreads / kWarpSize] = shared.squares[exchange_++ % 2];
      if (thread() < kThreads && lane == 0) squares[warp] = square;
      ptx::barrier_sync(1, kBlockThreads);
      if (thread() >= kThreads) return;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kThreads / kWarpSize; ++i) sum += squares[i];
      normalise<kDim>(u, amax, sum, a.eps);
      store_channels(a.cache, slice_.out, u, amax, kChannels * thread(), lane);
    }
  }

 private:
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) % kBlockThreads; }

  ChannelSlice<kDim, kChannels> slice_;
  unsigned exchange_;
};

}  // namespace strata::cuda
