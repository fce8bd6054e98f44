// How the tiles of all tokens are divided among the warpgroups or blocks of the logits kernels of Hopper.
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

// What a part takes longer that has a second token: it waits for that one's queries (docs/kernels/20261121-indexer.md).
inline constexpr int kSecondToken = 8;
inline constexpr int kMostPartedTiles = 1 << 24;  // of a token, as its parts are 32-bit numbers
__device__ __forceinline__ int tiles_of_rows(int rows) { return rows > 0 ? (rows - 1) / kTileRows + 1 : 0; }

// Work of a group of kGroup consecutive tokens: of one token, here; of the tokens that a block works on side by side, in runs.cuh.
template <int kGroup>
struct Work;
template <>
struct Work<1> {
  static __device__ __forceinline__ int64_t of(const LogitsArgs& a, int64_t token) {
    const int tiles = tiles_of_rows(scored_rows(a, token));
    return tiles > 0 ? int64_t{tiles} + kTokenStart : 0;
  }
};

// A part of the work of all groups, equal in size to the others and consecutive.
struct WorkRange {
  int64_t group;
  int64_t done;  // of the group, by the part in front
  int64_t left;  // from there on, over the following groups
};

struct WorkSearch {
  int64_t warp_sums[4];
};

// Of `total`, by 32-bit numbers: a division of longer ones takes a fifth of a microsecond.
struct Share {
  int64_t begin, size;
};
__device__ __forceinline__ Share share_of(const LogitsArgs& a, int64_t total, int part) {
  const int parts = a.parts.value();
  if (total >= int64_t{1} << 31) {
    const int64_t begin = total * part / parts;
    return {begin, total * (part + 1) / parts - begin};
  }
  const int each = a.parts.divide(static_cast<int>(total)), more = static_cast<int>(total) - each * parts;  // so many have one more
  return {each * part + min(part, more), each + (part < more ? 1 : 0)};
}

// The groups of one of several threads that search together, and the work of all of them.
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
  // Where `begin` is, counted from the first of these groups, if it is in them.
  __device__ bool find(const LogitsArgs& a, int64_t begin, int64_t& group, int64_t& done) const {
    group = first;
    done = begin;
    if (begin < 0 || begin >= work) return false;
    for (int64_t n; done >= (n = Work<kGroup>::of(a, group)); ++group) done -= n;
    return true;
  }
};

// The part of a token that has as many parts as every other one.
__device__ __forceinline__ WorkRange part_of_token(const LogitsArgs& a, int part) {
  const int token = a.token_parts.divide(part), each = a.token_parts.value(), in_token = part - token * each;
  if (token >= a.num_tokens) return {0, 0, 0};
  const auto tiles = tiles_of_rows(scored_rows(a, token));
  const int begin = a.token_parts.divide(tiles * in_token), end = a.token_parts.divide(tiles * (in_token + 1));
  return {token, kTokenStart + begin, end - begin};
}

// By a warp.
template <int kGroup>
__device__ __forceinline__ WorkRange find_work(const LogitsArgs& a, int part) {
  if (a.num_tokens <= kGroup) {  // nothing to look for
    const Share share = share_of(a, Work<kGroup>::of(a, 0), part);
    return {0, share.begin, share.size};
  }
  const OwnGroups<kGroup> own(a, threadIdx.x % 32, 32);
  const int64_t sum = lanes_up_to(own.work);
  const int64_t total = __shfl_sync(kAllLanes, sum, 31);
  const auto [begin, size] = share_of(a, total, part);
  if (kGroup == 1 && a.num_tokens <= a.parts.value()) {
    const auto longest = static_cast<int>(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(own.longest)));
    const int64_t least = share_of(a, total, a.parts.value() - 1).size;  // all parts decide alike
    if (longest <= kMostPartedTiles && a.token_parts.divide(longest) <= least + kSecondToken) return part_of_token(a, part);
  }
  int64_t group, done;
  const bool found = own.find(a, begin - (sum - own.work), group, done);
  const int lane = max(__ffs(static_cast<int>(__ballot_sync(kAllLanes, found))) - 1, 0);
  return {__shfl_sync(kAllLanes, group, lane), __shfl_sync(kAllLanes, done, lane), size};
}

// By the first warpgroup; the block's other threads pass one barrier meanwhile.
template <int kGroup>
__device__ __forceinline__ void find_work(const LogitsArgs& a, WorkSearch& s, int part, WorkRange& range) {
  const OwnGroups<kGroup> own(a, threadIdx.x, 128);
  int64_t sum = lanes_up_to(own.work), total = 0;
  if (threadIdx.x == 0) range = {0, 0, 0};  // of a part without work
  if (threadIdx.x % 32 == 31) s.warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (w < static_cast<int>(threadIdx.x) / 32) sum += s.warp_sums[w];
    total += s.warp_sums[w];
  }
  const auto [begin, size] = share_of(a, total, part);
  int64_t group, done;
  if (own.find(a, begin - (sum - own.work), group, done)) range = {group, done, size};
}

// Tiles [begin, end) of a token; not always any.
struct Tiles {
  int64_t token;
  int begin, end;
};

// Takes the next token's share of a range. False at its end.
__device__ __forceinline__ bool next_tiles(const LogitsArgs& a, WorkRange& range, Tiles& tiles) {
  if (range.left <= 0) return false;
  const int64_t end = min(Work<1>::of(a, range.group), range.done + range.left);
  tiles = {range.group, static_cast<int>(max(range.done - kTokenStart, int64_t{0})), static_cast<int>(max(end - kTokenStart, int64_t{0}))};
  range = {range.group + 1, 0, range.left - (end - range.done)};
  return true;
}

}  // namespace strata::cuda::sm90
