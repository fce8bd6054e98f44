// A CTA's work range of the call (work_ranges.h), computed from the lengths by the CTA itself when it starts.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/layout.h"
#include "backends/cuda/dense_attn_decode/sm90/work_ranges.h"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::dense_decode {

inline constexpr int kKept = 32;  // sequences of a range that roles need not look up

// Queries of a request that share the loads of their rows.
struct Sequence {
  int32_t token;    // the request's first
  int32_t queries;  // of the request
  int32_t rows;
};

struct Cut {
  int32_t sequence, tile;  // everything before this sequence and tile is before the cut
};
// The first sequence that lies entirely after a cut.
__device__ __forceinline__ int32_t sequence_after(const Cut& cut) { return cut.tile > 0 ? cut.sequence + 1 : cut.sequence; }

// A CTA's plan, in shared memory.
struct Plan {
  int32_t work_range, gang_tile;
  Cut begin, end;
  int32_t splits;        // splits of the sequence that begins in the range and continues after it; 0: none, or the cluster combines them
  bool combines;         // this range and its cluster's other one are the two splits of one sequence, which the cluster combines
  bool holds;            // lengths are the same as when the plan was made
  Sequence kept[kKept];  // the first ones

  __device__ __forceinline__ int32_t end_sequence() const { return sequence_after(end); }
  template <class Args>
  __device__ __forceinline__ Sequence sequence(const Args& a, int32_t s) const {
    return s - begin.sequence < kKept ? kept[s - begin.sequence] : a.sequence(s);
  }
};

// A work range as stored in a schedule. Sequences are requests; cuts are at tiles' first rows.
struct ScheduledWorkRange {
  Cut begin, end;
  int32_t splits;
  bool is_neighbours;
  int32_t shared, neighbours;

  // By whole warps; each lane loads one field.
  __device__ __forceinline__ ScheduledWorkRange(const int32_t* schedule, int32_t work_range) {
    constexpr int kFields = 8;
    const auto lane_field = static_cast<int32_t>(ptx::ld_current_if(true, schedule + work_range * kFields + threadIdx.x % kFields, 0));
    const auto field = [&](int i) { return __shfl_sync(kAllLanes, lane_field, i); };
    begin = {field(0), field(1) / kTileRows}, end = {field(2), field(3) / kTileRows};
    splits = field(4), is_neighbours = field(5) != 0, shared = field(6), neighbours = field(7);
  }
  // Sequences of the call that the combine kernel must handle.
  __device__ __forceinline__ int32_t to_combine(bool clusters_combine) const { return shared - (clusters_combine ? neighbours : 0); }
};

// A sequence with splits in several ranges; this entry belongs to the range of the first split.
struct alignas(16) SplitSequence {
  int32_t token, first_pair, pairs;  // the request's first token; the range of its (query, head) pairs: the first, and one past the last
  int32_t splits;                    // 0: no such sequence
};

// Slots of a range's splits: of the sequence that began before the range, and of the one that continues after it.
__device__ __forceinline__ int32_t split_slot(int32_t work_range, bool begins) { return 2 * work_range + (begins ? 1 : 0); }
// Slot of the i-th split of a sequence whose first split is in range first_work_range.
__device__ __forceinline__ int32_t split_slot_of(int32_t first_work_range, int32_t i) { return split_slot(first_work_range + i, i == 0); }

// Plans with all kThreads threads of the CTA. The CTA starts with this, so latency and code size matter.
template <class Args, int kThreads>
class Planner {
  static constexpr int kWarps = kThreads / kWarpSize, kQuarter = kWarps / 4;

 public:
  static constexpr int32_t kCheckers = kThreads / 2;  // the first and the last quarter of the threads: they have the first sequences

  // tiles_of_sequences: room for a number per sequence.
  __device__ __forceinline__ Planner(const Args& args, Plan& memory, int32_t* tiles_of_sequences)
      : a(args), plan(memory), tiles(tiles_of_sequences) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int work = warp < kQuarter ? warp : warp >= kWarps - kQuarter ? warp - 2 * kQuarter : warp + kQuarter;
    thread = work * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize;
  }
  __device__ __forceinline__ bool is_checker() const { return thread < kCheckers; }
  __device__ __forceinline__ bool checkers_have_all() const { return a.num_sequences <= kCheckers; }
  // Whether this thread's sequence is still what make() saw.
  __device__ __forceinline__ bool same() const {
    if (a.num_sequences > kThreads) return false;
    if (thread >= a.num_sequences) return true;
    const Sequence now = a.sequence(thread);
    return now.token == own.token && now.queries == own.queries && now.rows == own.rows;
  }

  __device__ __forceinline__ void make(int32_t work_range, bool pairs_combine) {
#pragma unroll 1
    for (int32_t s = thread; s < a.num_sequences; s += kThreads) {
      own = a.sequence(s);
      tiles[s] = a.tiles(own, s);
    }
    __syncthreads();
    if (thread < kWarpSize) find_cuts(work_range, pairs_combine);
    __syncthreads();
    const int32_t first = plan.begin.sequence, kept = a.num_sequences > kThreads ? thread : thread - first;
    if (kept >= 0 && kept < kKept && first + kept < plan.end_sequence()) {
      plan.kept[kept] = a.num_sequences > kThreads ? a.sequence(first + kept) : own;
    }
    __syncthreads();
  }

 private:
  // By one warp.
  __device__ __forceinline__ void find_cuts(int32_t work_range, bool pairs_combine) {
    int32_t all = 0, longest = 0, some = 0;
#pragma unroll 1
    for (int32_t s = thread; s < a.num_sequences; s += kWarpSize) {
      const int32_t of = tiles[s];
      all += of, longest = max(longest, of), some += of > 0 ? 1 : 0;
    }
    const Partition partition(__reduce_add_sync(kAllLanes, all), __reduce_max_sync(kAllLanes, longest), __reduce_add_sync(kAllLanes, some),
                              a.num_work_ranges);
    const int32_t begin = partition.begin(work_range), end = partition.begin(work_range + 1);
    if (thread == 0) plan.begin = plan.end = {a.num_sequences, 0}, plan.splits = 0, plan.combines = false;
    __syncwarp();
    int32_t before = 0;  // on the line, of earlier sequences
#pragma unroll 1
    for (int32_t first = 0; first < a.num_sequences && before <= end; first += kWarpSize) {
      const int32_t s = first + thread, of = s < a.num_sequences ? tiles[s] : 0, length = partition.length(of);
      const int32_t up_to = before + lanes_up_to(length), position = up_to - length;
      before = __shfl_sync(kAllLanes, up_to, kWarpSize - 1);
      if (length == 0 || position > end || up_to <= begin) continue;
      const int32_t first_tile = begin < position ? 0 : partition.tiles_before(begin - position, of),
                    end_tile = partition.tiles_before(end - position, of);
      const bool combines = pairs_combine && partition.in_splits() && length == 2 && position % 2 == 0;
      if (begin >= position) plan.begin = {s, first_tile}, plan.combines = combines;
      if (end >= up_to) continue;
      plan.end = {s, end_tile};
      if (!combines && first_tile == 0 && end_tile > 0 && end_tile < of)
        plan.splits = partition.last_work_range(position, of) - work_range + 1;
    }
  }

  const Args& a;
  Plan& plan;
  int32_t* tiles;
  int thread;      // index in the order of the sequences
  Sequence own{};  // this thread's last sequence
};

}  // namespace strata::cuda::dense_decode
