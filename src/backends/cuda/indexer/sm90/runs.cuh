// The work of a CTA of the prefill kernel: groups of consecutive tokens, divided into runs. A run is the consecutive tokens of one request,
// which score the same rows.
#pragma once

#include "backends/cuda/indexer/sm90/token_tiles.h"
#include "backends/cuda/indexer/sm90/work.cuh"

namespace strata::cuda::sm90 {

template <int kTokens>
inline constexpr int kGroupOf{kPrefillWarpgroups * kTokens};

// Not loaded after its rows, so that both arrive at the same time.
__device__ __forceinline__ int request_of(const LogitsArgs& a, int64_t token) { return token < a.num_tokens ? a.token_to_req[token] : -1; }

template <int kGroup>
struct Work {
  static __device__ __forceinline__ int64_t of(const LogitsArgs& a, int64_t group) {
    constexpr int kTokens = kGroup / kPrefillWarpgroups;
    int rows[kGroup], request[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int64_t token = group * kGroup + i;
      rows[i] = scored_rows(a, token);
      request[i] = request_of(a, token);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) request[i] = rows[i] > 0 ? request[i] : -1;
    int64_t work = 0;
    int tokens = 0, longest = 0;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      ++tokens, longest = max(longest, rows[i]);
      if (i + 1 < kGroup && request[i + 1] == request[i]) continue;
      if (longest > 0) work += run_work(num_token_tiles(tokens, kTokens), tiles_of_rows(longest));
      tokens = longest = 0;
    }
    return work;
  }
};

// Tiles [begin, end) of the rows of a request, for the tokens [first, first + count) of a group. own_rows: of the group's token with this
// lane's index.
struct Run {
  int64_t group;
  int first, count;
  int request, own_rows;
  int begin, end;
};

// Calls f(run) for the runs of a range. By whole warps.
template <int kTokens, class F>
__device__ __forceinline__ void for_each_run(const LogitsArgs& a, WorkRange range, F&& f) {
  constexpr int kGroup = kGroupOf<kTokens>;
  const int lane = threadIdx.x % 32;
  for (; range.left > 0; ++range.group) {
    const int64_t token = range.group * kGroup + lane;
    const int rows = lane < kGroup ? scored_rows(a, token) : 0;
    const int of_token = lane < kGroup ? request_of(a, token) : -1;
    const int request = rows > 0 ? of_token : -1, before = __shfl_up_sync(kAllLanes, request, 1);
    // Where a run begins, or tokens that are not scored.
    uint32_t begins = __ballot_sync(kAllLanes, lane == 0 || (lane <= kGroup && request != before));
    while (begins != 0 && range.left > 0) {
      const int first = __ffs(static_cast<int>(begins)) - 1;
      begins &= begins - 1;
      const int end = begins != 0 ? __ffs(static_cast<int>(begins)) - 1 : kGroup;
      const int longest = __reduce_max_sync(kAllLanes, lane >= first && lane < end ? rows : 0);
      if (longest == 0) continue;
      const int token_tiles = num_token_tiles(end - first, kTokens), work = run_work(token_tiles, tiles_of_rows(longest));
      if (range.done >= work) {
        range.done -= work;
        continue;
      }
      const auto done = static_cast<int>(range.done), until = static_cast<int>(min(int64_t{work}, range.done + range.left));
      range.left -= until - done;
      range.done = 0;
      const Run run{range.group,
                    first,
                    end - first,
                    __shfl_sync(kAllLanes, request, first),
                    rows,
                    tiles_in_work(token_tiles, done),
                    tiles_in_work(token_tiles, until)};
      if (run.begin < run.end) f(run);
    }
  }
}

}  // namespace strata::cuda::sm90
