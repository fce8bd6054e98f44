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
  int2 sums[kPartSizes];
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

// By all threads of the block: kThreads. A block comes here first, so that little code counts: of each kind of work there is one copy.
template <class Args, int kThreads>
class Planner {
  static constexpr int kWarps = kThreads / kWarpSize;
  static_assert(kWarps == kPartSizes, "a warp for each");

 public:
  __device__ __forceinline__ Planner(const Args& args, Plan& memory)
      : a(args), plan(memory), thread(static_cast<int>(threadIdx.x)), warp(thread / kWarpSize), lane(thread % kWarpSize) {}

  __device__ __forceinline__ void make(int32_t span, bool pairs_merge) {
    Cutting cutting{};
    // The first round finds how much there is, the second where the span begins and ends.
#pragma unroll 1
    for (int round = 0; round < 2; ++round) {
      int32_t before = 0, sequences = 0;  // of the line, or tiles, by the sequences of earlier turns; how many have tiles
#pragma unroll 1
      for (int32_t first = 0; first < a.num_sequences; first += kThreads) {
        const int32_t s = first + thread;
        if (round == 0 || a.num_sequences > kThreads) look_up(s);
        const int32_t length = round == 0 ? tiles : cutting.length(tiles), up_to = lanes_up_to(length),
                      some = __popc(__ballot_sync(kAllLanes, tiles > 0));
        if (lane == kWarpSize - 1) plan.sums[warp] = {up_to, some};
        if (round == 0 && s < kMostSpans) plan.tiles[s] = tiles;
        if (round == 0 && thread == 0) plan.begin = plan.end = {a.num_sequences, 0}, plan.parts = 0, plan.merges = false;
        __syncthreads();
        const int2 of_warp = lane < kWarps ? plan.sums[lane] : int2{};
        const int32_t place = before + __reduce_add_sync(kAllLanes, lane < warp ? of_warp.x : 0) + up_to - length;
        before += __reduce_add_sync(kAllLanes, of_warp.x);
        sequences += __reduce_add_sync(kAllLanes, of_warp.y);
        if (round > 0 && length > 0) find_cuts(cutting, s, place, length, span, pairs_merge);
        __syncthreads();
      }
      if (round == 0) choose(cutting = Cutting(before, sequences, a.num_spans));
    }
    const int32_t first = plan.begin.sequence, end = min(plan.end_sequence(), first + kKept);
    if (a.num_sequences > kThreads) look_up(first + thread);
    const int32_t kept = a.num_sequences > kThreads ? thread : thread - first;
    if (kept >= 0 && first + kept < end) plan.kept[kept] = own;
    __syncthreads();
  }
  // Whether what make() saw is there still. For all threads.
  __device__ __forceinline__ bool holds() {
    const Sequence before = own;
    look_up(thread);
    const bool same = own.token == before.token && own.queries == before.queries && own.rows == before.rows;
    return __syncthreads_and(same && a.num_sequences <= kThreads) != 0;
  }

 private:
  __device__ __forceinline__ void look_up(int32_t s) {
    own = {}, tiles = 0;
    if (s < a.num_sequences) own = a.sequence(s), tiles = a.tiles(own, s);
  }

  __device__ __forceinline__ void choose(Cutting& cutting) {
    if (a.num_sequences > a.num_spans) return;
    const int32_t part = cutting.part_size(warp);
    int32_t parts = 0;
#pragma unroll 1
    for (int32_t s = lane; s < a.num_sequences; s += kWarpSize) parts += pieces_of(plan.tiles[s], part);
    parts = __reduce_add_sync(kAllLanes, parts);
    if (lane == 0) plan.fits[warp] = parts <= a.num_spans;
    __syncthreads();
    const uint32_t fits = __ballot_sync(kAllLanes, lane < kPartSizes && plan.fits[lane % kPartSizes]);
    if (fits != 0) cutting.cut_into_parts(cutting.part_size(__ffs(static_cast<int>(fits)) - 1));
  }

  // Of this thread's sequence, which begins at a place of the line.
  __device__ __forceinline__ void find_cuts(const Cutting& cutting, int32_t s, int32_t place, int32_t length, int32_t span,
                                            bool pairs_merge) {
    const int32_t begin = cutting.begin(span) - place, end = cutting.begin(span + 1) - place;
    if (end < 0 || begin >= length) return;
    const int32_t first_tile = begin < 0 ? 0 : cutting.tiles_before(begin, tiles), end_tile = cutting.tiles_before(end, tiles);
    const bool merges = pairs_merge && cutting.in_parts() && length == 2 && place % 2 == 0;
    if (begin >= 0) plan.begin = {s, first_tile}, plan.merges = merges;
    if (end >= length) return;
    plan.end = {s, end_tile};
    if (!merges && first_tile == 0 && end_tile > 0 && end_tile < tiles) plan.parts = cutting.last_span(place, tiles) - span + 1;
  }

  const Args& a;
  Plan& plan;
  int thread, warp, lane;
  Sequence own{};     // this thread's last one
  int32_t tiles = 0;  // of that
};

}  // namespace strata::cuda::dense_decode
