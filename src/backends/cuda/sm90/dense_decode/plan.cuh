// A block's share of the call (spans.h), worked out by the block itself from the lengths, when it begins.
#pragma once

#include "backends/cuda/common/warp.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/sm90/dense_decode/spans.h"

namespace strata::cuda::dense_decode {

inline constexpr int kMostSpans = 256;  // of a call
inline constexpr int kKept = 24;        // sequences of a span that roles need not look up

// Queries of a request whose rows are loaded together.
struct Sequence {
  int32_t token;    // the request's first
  int32_t queries;  // of the request
  int32_t rows;
};

struct Cut {
  int32_t sequence, tile;  // what lies before them is before the cut
};

// In shared memory.
struct Plan {
  int32_t span, gang_tile;
  Cut begin, end;
  int32_t parts;  // of the sequence that begins in the span and is cut by its end; 0: there is none, or the cluster merges them
  bool merges;    // this span and its cluster's other one are a sequence's two parts, which the cluster merges
  Sequence kept[kKept];
  // While it is made.
  int32_t tiles[kMostSpans];
  int32_t sums[2][16];
  bool fits[kPartSizes];

  __device__ __forceinline__ int32_t end_sequence() const { return end.tile > 0 ? end.sequence + 1 : end.sequence; }
};

// A sequence with parts in several spans, the first of which is the one that this belongs to.
struct alignas(16) Parted {
  int32_t token, first_pair, pairs;  // the request's first token; (query, head) pairs of the request from the first on, behind the last
  int32_t parts;                     // 0: there is no such sequence
};

// Where the parts of spans are kept: of the sequence that began before the span, and of the one that ends behind it.
__device__ __forceinline__ int32_t part_slot(int32_t span, bool begins) { return 2 * span + (begins ? 1 : 0); }
// Of the i-th part of a sequence whose first one is a span's.
__device__ __forceinline__ int32_t part_slot_of(int32_t first_span, int32_t i) { return part_slot(first_span + i, i == 0); }

// By all threads of the block: kThreads.
template <class Args, int kThreads>
class Planner {
  static constexpr int kWarps = kThreads / kWarpSize;
  static_assert(kWarps == kPartSizes, "a warp for each");

 public:
  __device__ __forceinline__ Planner(const Args& args, Plan& memory) : a(args), plan(memory), thread(static_cast<int>(threadIdx.x)) {}

  // Once the lengths are final; before, they may be anything.
  __device__ __forceinline__ void make(int32_t span, bool pairs_merge) {
    look_at_lengths();
    const Cutting cutting = choose();
    find_cuts(cutting, span, pairs_merge);
    const int32_t first = plan.begin.sequence, end = plan.end_sequence();
    if (a.num_sequences <= kThreads) {
      if (thread >= first && thread < min(end, first + kKept)) plan.kept[thread - first] = own;
    } else if (first + thread < min(end, first + kKept)) {
      plan.kept[thread] = a.sequence(first + thread);
    }
    __syncthreads();
  }
  // Whether what make() saw is there still. For all threads.
  __device__ __forceinline__ bool holds() const {
    bool same = a.num_sequences <= kThreads;
    if (same && thread < a.num_sequences) {
      const Sequence now = a.sequence(thread);
      same = now.token == own.token && now.queries == own.queries && now.rows == own.rows;
    }
    return __syncthreads_and(same) != 0;
  }

 private:
  __device__ __forceinline__ void look_at_lengths() {
    int32_t all = 0, some = 0;
    for (int32_t s = thread; s < a.num_sequences; s += kThreads) {
      own = a.sequence(s);
      tiles = a.tiles(own, s);
      if (s < kMostSpans) plan.tiles[s] = tiles;
      all += tiles;
      some += tiles > 0 ? 1 : 0;
    }
    all = __reduce_add_sync(kAllLanes, all), some = __reduce_add_sync(kAllLanes, some);
    if (thread % kWarpSize == 0) plan.sums[0][thread / kWarpSize] = all, plan.sums[1][thread / kWarpSize] = some;
    __syncthreads();
  }
  __device__ __forceinline__ int32_t total(int which) const {
    const int lane = thread % kWarpSize;
    return __reduce_add_sync(kAllLanes, lane < kWarps ? plan.sums[which][lane] : 0);
  }

  __device__ __forceinline__ Cutting choose() {
    Cutting cutting(total(0), total(1), a.num_spans);
    if (a.num_sequences > a.num_spans) return cutting;
    const int warp = thread / kWarpSize, lane = thread % kWarpSize;
    const int32_t part = cutting.part_size(warp);
    int32_t parts = 0;
    for (int32_t s = lane; s < a.num_sequences; s += kWarpSize) parts += pieces_of(plan.tiles[s], part);
    parts = __reduce_add_sync(kAllLanes, parts);
    if (lane == 0) plan.fits[warp] = parts <= a.num_spans;
    __syncthreads();
    const uint32_t fits = __ballot_sync(kAllLanes, lane < kPartSizes && plan.fits[lane % kPartSizes]);
    if (fits != 0) cutting.cut_into_parts(cutting.part_size(__ffs(static_cast<int>(fits)) - 1));
    return cutting;
  }

  __device__ __forceinline__ void find_cuts(const Cutting& cutting, int32_t span, bool pairs_merge) {
    if (thread == 0) {
      plan.span = span;
      plan.begin = plan.end = {a.num_sequences, 0};
      plan.parts = 0;
      plan.merges = false;
    }
    const int warp = thread / kWarpSize, lane = thread % kWarpSize;
    int32_t before = 0;  // of the line, by sequences of earlier rounds
    for (int32_t first = 0; first < a.num_sequences; first += kThreads) {
      const int32_t s = first + thread;
      if (a.num_sequences > kThreads) tiles = s < a.num_sequences ? a.tiles(a.sequence(s), s) : 0;
      const int32_t length = s < a.num_sequences ? cutting.length(tiles) : 0, up_to = lanes_up_to(length);
      __syncthreads();  // sums are read, and what the first thread has set is there
      if (lane == kWarpSize - 1) plan.sums[0][warp] = up_to;
      __syncthreads();
      const int32_t of_warp = lane < kWarps ? plan.sums[0][lane] : 0;
      const int32_t place = before + __reduce_add_sync(kAllLanes, lane < warp ? of_warp : 0) + up_to - length;
      before += __reduce_add_sync(kAllLanes, of_warp);
      const int32_t begin = cutting.begin(span) - place, end = cutting.begin(span + 1) - place;
      const int32_t first_tile = begin < 0 ? 0 : cutting.tiles_before(begin, tiles), end_tile = cutting.tiles_before(end, tiles);
      const bool ends_here = end >= 0 && end < length, merges = pairs_merge && cutting.in_parts() && length == 2 && place == span / 2 * 2;
      if (begin >= 0 && begin < length) plan.begin = {s, first_tile};
      if (ends_here) plan.end = {s, end_tile};
      if (merges) plan.merges = true;
      if (ends_here && !merges && first_tile == 0 && end_tile > 0 && end_tile < tiles) {
        plan.parts = cutting.last_span(place, tiles) - span + 1;
      }
    }
    __syncthreads();
  }

  const Args& a;
  Plan& plan;
  int thread;
  Sequence own{};     // this thread's last one
  int32_t tiles = 0;  // of that
};

}  // namespace strata::cuda::dense_decode
