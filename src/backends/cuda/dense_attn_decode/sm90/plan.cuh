// A block's share of the call (spans.h), worked out by the block itself from the lengths, when it begins.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/layout.h"
#include "backends/cuda/dense_attn_decode/sm90/spans.h"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::dense_decode {

inline constexpr int kKept = 32;  // sequences of a span that roles need not look up

// Queries of a request whose rows are loaded together.
struct Sequence {
  int32_t token;    // the request's first
  int32_t queries;  // of the request
  int32_t rows;
};

struct Cut {
  int32_t sequence, tile;  // what lies before them is before the cut
};
// The first sequence all of which lies behind a cut.
__device__ __forceinline__ int32_t behind(const Cut& cut) { return cut.tile > 0 ? cut.sequence + 1 : cut.sequence; }

// In shared memory.
struct Plan {
  int32_t span, gang_tile;
  Cut begin, end;
  int32_t parts;         // of the sequence that begins in the span and is cut by its end; 0: there is none, or the cluster merges them
  bool merges;           // this span and its cluster's other one are a sequence's two parts, which the cluster merges
  bool holds;            // lengths are what they were when the plan was made
  Sequence kept[kKept];  // the first ones

  __device__ __forceinline__ int32_t end_sequence() const { return behind(end); }
  template <class Args>
  __device__ __forceinline__ Sequence sequence(const Args& a, int32_t s) const {
    return s - begin.sequence < kKept ? kept[s - begin.sequence] : a.sequence(s);
  }
};

// A span as a schedule says it. Sequences are requests, places are at tiles' first rows.
struct ScheduledSpan {
  Cut begin, end;
  int32_t parts;
  bool is_neighbours;
  int32_t shared, neighbours;

  // By whole warps, a field a lane.
  __device__ __forceinline__ ScheduledSpan(const int32_t* schedule, int32_t span) {
    constexpr int kFields = 8;
    const auto of_lane = static_cast<int32_t>(ptx::ld_current_if(true, schedule + span * kFields + threadIdx.x % kFields, 0));
    const auto field = [&](int i) { return __shfl_sync(kAllLanes, of_lane, i); };
    begin = {field(0), field(1) / kTileRows}, end = {field(2), field(3) / kTileRows};
    parts = field(4), is_neighbours = field(5) != 0, shared = field(6), neighbours = field(7);
  }
  // Sequences of the call that are left to the merge.
  __device__ __forceinline__ int32_t to_merge(bool clusters_merge) const { return shared - (clusters_merge ? neighbours : 0); }
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

// By all threads of the block, kThreads. A block comes here first: what counts is latency, and how much code there is.
template <class Args, int kThreads>
class Planner {
  static constexpr int kWarps = kThreads / kWarpSize, kQuarter = kWarps / 4;

 public:
  static constexpr int32_t kCheckers = kThreads / 2;  // the first and the last quarter of the threads: they have the first sequences

  // tiles: room for a number for each sequence.
  __device__ __forceinline__ Planner(const Args& args, Plan& memory, int32_t* tiles_of_sequences)
      : a(args), plan(memory), tiles(tiles_of_sequences) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int seat = warp < kQuarter ? warp : warp >= kWarps - kQuarter ? warp - 2 * kQuarter : warp + kQuarter;
    thread = seat * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize;
  }
  __device__ __forceinline__ bool is_checker() const { return thread < kCheckers; }
  __device__ __forceinline__ bool checkers_have_all() const { return a.num_sequences <= kCheckers; }
  // Whether what make() saw of this thread's sequence is there still.
  __device__ __forceinline__ bool same() const {
    if (a.num_sequences > kThreads) return false;
    if (thread >= a.num_sequences) return true;
    const Sequence now = a.sequence(thread);
    return now.token == own.token && now.queries == own.queries && now.rows == own.rows;
  }

  __device__ __forceinline__ void make(int32_t span, bool pairs_merge) {
#pragma unroll 1
    for (int32_t s = thread; s < a.num_sequences; s += kThreads) {
      own = a.sequence(s);
      tiles[s] = a.tiles(own, s);
    }
    __syncthreads();
    if (thread < kWarpSize) find_cuts(span, pairs_merge);
    __syncthreads();
    const int32_t first = plan.begin.sequence, kept = a.num_sequences > kThreads ? thread : thread - first;
    if (kept >= 0 && kept < kKept && first + kept < plan.end_sequence()) {
      plan.kept[kept] = a.num_sequences > kThreads ? a.sequence(first + kept) : own;
    }
    __syncthreads();
  }

 private:
  // By one warp.
  __device__ __forceinline__ void find_cuts(int32_t span, bool pairs_merge) {
    int32_t all = 0, longest = 0, some = 0;
#pragma unroll 1
    for (int32_t s = thread; s < a.num_sequences; s += kWarpSize) {
      const int32_t of = tiles[s];
      all += of, longest = max(longest, of), some += of > 0 ? 1 : 0;
    }
    const Cutting cutting(__reduce_add_sync(kAllLanes, all), __reduce_max_sync(kAllLanes, longest), __reduce_add_sync(kAllLanes, some),
                          a.num_spans);
    const int32_t begin = cutting.begin(span), end = cutting.begin(span + 1);
    if (thread == 0) plan.begin = plan.end = {a.num_sequences, 0}, plan.parts = 0, plan.merges = false;
    __syncwarp();
    int32_t before = 0;  // of the line, by earlier sequences
#pragma unroll 1
    for (int32_t first = 0; first < a.num_sequences && before <= end; first += kWarpSize) {
      const int32_t s = first + thread, of = s < a.num_sequences ? tiles[s] : 0, length = cutting.length(of);
      const int32_t up_to = before + lanes_up_to(length), place = up_to - length;
      before = __shfl_sync(kAllLanes, up_to, kWarpSize - 1);
      if (length == 0 || place > end || up_to <= begin) continue;
      const int32_t first_tile = begin < place ? 0 : cutting.tiles_before(begin - place, of),
                    end_tile = cutting.tiles_before(end - place, of);
      const bool merges = pairs_merge && cutting.in_parts() && length == 2 && place % 2 == 0;
      if (begin >= place) plan.begin = {s, first_tile}, plan.merges = merges;
      if (end >= up_to) continue;
      plan.end = {s, end_tile};
      if (!merges && first_tile == 0 && end_tile > 0 && end_tile < of) plan.parts = cutting.last_span(place, of) - span + 1;
    }
  }

  const Args& a;
  Plan& plan;
  int32_t* tiles;
  int thread;      // in the order of the sequences
  Sequence own{};  // this thread's, the last one
};

}  // namespace strata::cuda::dense_decode
