// Divides the tiles of all tokens among the warpgroups or CTAs of Hopper's logits kernels.
#pragma once

#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/indexer/sm90/config.h"
#include "backends/cuda/ptx/warpgroup.cuh"

namespace strata::cuda::sm90 {

__device__ __forceinline__ void warpgroup_sync(int warpgroup) { ptx::barrier_sync(static_cast<uint32_t>(warpgroup) + 1, 128); }

// Rows of a token that are scored.
__device__ __forceinline__ int scored_rows(const LogitsArgs& a, int64_t token) {
  const int length = token < a.num_tokens ? a.lengths[token] : 0;
  return length > a.skip ? length : 0;
}

// Starts to load a line into L1.
__device__ __forceinline__ void load_line(const void* global) {
  asm volatile("{\n.reg .b32 unused;\nld.global.ca.b32 unused, [%0];\n}\n" ::"l"(global) : "memory");
}

// Extra time of a share that has a second token: it waits for that token's queries (docs/kernels/indexer.md).
inline constexpr int kSecondToken = 8;
inline constexpr int kMaxSharedTiles = 1 << 24;  // of a token, because its work is a 32-bit number
__device__ __forceinline__ int tiles_of_rows(int rows) { return rows > 0 ? (rows - 1) / kTileRows + 1 : 0; }

// Work of a group of kGroup consecutive tokens: here of one token; runs.cuh has that of tokens that a CTA scores together, in runs.
template <int kGroup>
struct Work;
template <>
struct Work<1> {
  static __device__ __forceinline__ int64_t of(const LogitsArgs& a, int64_t token) {
    const int tiles = tiles_of_rows(scored_rows(a, token));
    return tiles > 0 ? int64_t{tiles} + kTokenStart : 0;
  }
};

// A share of the work of all groups, equal in size to the others and consecutive.
struct WorkRange {
  int64_t group;
  int64_t done;  // of the group, by the previous share
  int64_t left;  // from there on, over the following groups
};

struct WorkSearch {
  int64_t warp_sums[4];
};

// A share of `total`, with 32-bit numbers: a 64-bit division takes a fifth of a microsecond.
struct WorkShare {
  int64_t begin, size;
};
__device__ __forceinline__ WorkShare share_of(const LogitsArgs& a, int64_t total, int index) {
  const int num_shares = a.num_shares.value();
  if (total >= int64_t{1} << 31) {
    const int64_t begin = total * index / num_shares;
    return {begin, total * (index + 1) / num_shares - begin};
  }
  const int each = a.num_shares.divide(static_cast<int>(total)),
            more = static_cast<int>(total) - each * num_shares;  // `more` shares have one more
  return {each * index + min(index, more), each + (index < more ? 1 : 0)};
}

// The groups of one of several threads that search together, and the work of all threads.
template <int kGroup>
struct OwnGroups {
  int64_t first, end, work = 0, longest = 0;
  __device__ OwnGroups(const LogitsArgs& a, int thread, int threads) {
    const int64_t num_groups = (a.num_tokens + kGroup - 1) / kGroup, each = (num_groups + threads - 1) / threads;
    first = thread * each;
    end = min(first + each, num_groups);
    for (int64_t g = first; g < end; ++g) {
      const int64_t of_group = Work<kGroup>::of(a, g);
      work += of_group, longest = max(longest, of_group);
    }
  }
  // If `begin`, counted from the first of these groups, is in them, finds the group and the position there.
  __device__ bool find(const LogitsArgs& a, int64_t begin, int64_t& group, int64_t& done) const {
    group = first;
    done = begin;
    if (begin < 0 || begin >= work) return false;
    for (int64_t n; done >= (n = Work<kGroup>::of(a, group)); ++group) done -= n;
    return true;
  }
};

// A token's share if all tokens have as many shares.
__device__ __forceinline__ WorkRange token_share(const LogitsArgs& a, int index) {
  const int token = a.shares_per_token.divide(index), each = a.shares_per_token.value(), in_token = index - token * each;
  if (token >= a.num_tokens) return {0, 0, 0};
  const auto tiles = tiles_of_rows(scored_rows(a, token));
  const int begin = a.shares_per_token.divide(tiles * in_token), end = a.shares_per_token.divide(tiles * (in_token + 1));
  return {token, kTokenStart + begin, end - begin};
}

// By a warp.
template <int kGroup>
__device__ __forceinline__ WorkRange find_work(const LogitsArgs& a, int index) {
  if (a.num_tokens <= kGroup) {  // nothing to search
    const WorkShare share = share_of(a, Work<kGroup>::of(a, 0), index);
    return {0, share.begin, share.size};
  }
  const OwnGroups<kGroup> own(a, threadIdx.x % 32, 32);
  const int64_t sum = lanes_up_to(own.work);
  const int64_t total = __shfl_sync(kAllLanes, sum, 31);
  const auto [begin, size] = share_of(a, total, index);
  if (kGroup == 1 && a.num_tokens <= a.num_shares.value()) {
    const auto longest = static_cast<int>(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(own.longest)));
    const int64_t least = share_of(a, total, a.num_shares.value() - 1).size;  // all shares decide alike
    if (longest <= kMaxSharedTiles && a.shares_per_token.divide(longest) <= least + kSecondToken) return token_share(a, index);
  }
  int64_t group, done;
  const bool found = own.find(a, begin - (sum - own.work), group, done);
  const int lane = max(__ffs(static_cast<int>(__ballot_sync(kAllLanes, found))) - 1, 0);
  return {__shfl_sync(kAllLanes, group, lane), __shfl_sync(kAllLanes, done, lane), size};
}

// By the first warpgroup; the CTA's other threads pass one barrier meanwhile.
template <int kGroup>
__device__ __forceinline__ void find_work(const LogitsArgs& a, WorkSearch& s, int index, WorkRange& range) {
  const OwnGroups<kGroup> own(a, threadIdx.x, 128);
  int64_t sum = lanes_up_to(own.work), total = 0;
  if (threadIdx.x == 0) range = {0, 0, 0};  // a share without work
  if (threadIdx.x % 32 == 31) s.warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (w < static_cast<int>(threadIdx.x) / 32) sum += s.warp_sums[w];
    total += s.warp_sums[w];
  }
  const auto [begin, size] = share_of(a, total, index);
  int64_t group, done;
  if (own.find(a, begin - (sum - own.work), group, done)) range = {group, done, size};
}

// Tiles [begin, end) of a token; may be empty.
struct Tiles {
  int64_t token;
  int begin, end;
};

// Takes the next token's tiles of a range. False at its end.
__device__ __forceinline__ bool next_tiles(const LogitsArgs& a, WorkRange& range, Tiles& tiles) {
  if (range.left <= 0) return false;
  const int64_t end = min(Work<1>::of(a, range.group), range.done + range.left);
  tiles = {range.group, static_cast<int>(max(range.done - kTokenStart, int64_t{0})), static_cast<int>(max(end - kTokenStart, int64_t{0}))};
  range = {range.group + 1, 0, range.left - (end - range.done)};
  return true;
}

}  // namespace strata::cuda::sm90
