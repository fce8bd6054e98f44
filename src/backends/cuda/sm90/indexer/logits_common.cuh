// What the logits kernels of Hopper share: how the tiles are divided, and the product and weighted sum of one tile. V4 10.3, MLA 11.6.
//
// wgmma 64 x N x 32, e4m3: 64 cache rows are the M of a product, the heads of one or two tokens its N. A thread then holds N / 4 sums of
// two rows, so that the ReLU and the weighted sum over heads need no more than three shuffles a tile, and the head weights stay in N / 4
// registers. The rows are operand A, in registers; the queries lie in shared memory as operand B.
//
// The order of the values within a vector does not matter to a product. Operand A wants word 4 m + c of 64 bytes in thread c of a
// quad; a thread that loads 16 bytes at once has words 4 c + m. So the queries are stored with these words transposed.
#pragma once

#include "backends/cuda/common/divisor.h"
#include "backends/cuda/common/warp.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/relu.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma_rs.cuh"
#include "backends/cuda/sm90/indexer/config.h"

namespace strata::cuda::sm90 {

__device__ __forceinline__ void warpgroup_sync(int warpgroup) { asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory"); }

// Rows of a token that are scored.
__device__ __forceinline__ int scored_rows(const LogitsArgs& a, int64_t token) {
  const int length = token < a.num_tokens ? a.lengths[token] : 0;
  return length > a.skip ? length : 0;
}

// Starts to load a line into L1.
__device__ __forceinline__ void load_line(const void* global) {
  asm volatile("{\n.reg .b32 unused;\nld.global.ca.b32 unused, [%0];\n}\n" ::"l"(global) : "memory");
}

// Work of a group of kGroup consecutive tokens that are worked on side by side: its tiles, and what it takes to begin with a group
// (lengths, page numbers, queries) in tiles. A part that is made of short groups would take several times as long as the others without it.
inline constexpr int kGroupStart = 6;
template <int kGroup>
__device__ __forceinline__ int64_t tiles_of(const LogitsArgs& a, int64_t group) {
  int rows = 0;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) rows = max(rows, scored_rows(a, group * kGroup + i));
  return (rows + int64_t{kTileRows} - 1) / kTileRows;
}
template <int kGroup>
__device__ __forceinline__ int64_t work_of(const LogitsArgs& a, int64_t group) {
  const int64_t tiles = tiles_of<kGroup>(a, group);
  return tiles > 0 ? tiles + kGroupStart : 0;
}

// Part `part` of `parts` of the work of all groups, equal in size and consecutive.
struct WorkRange {
  int64_t group;
  int64_t done;  // of the group, by the part in front
  int64_t left;  // from there on, over the following groups
};

struct WorkSearch {
  int64_t warp_sums[4];
  int64_t group, done;
};

// By a warpgroup.
template <int kGroup>
__device__ __forceinline__ WorkRange find_work(const LogitsArgs& a, WorkSearch& s, int warpgroup, int64_t part, int64_t parts) {
  if (a.num_tokens <= kGroup) {  // nothing to look for, and no barrier
    const int64_t total = work_of<kGroup>(a, 0), begin = total * part / parts;
    return {0, begin, total * (part + 1) / parts - begin};
  }
  const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
  const int64_t num_groups = (a.num_tokens + kGroup - 1) / kGroup;
  const int64_t per_thread = (num_groups + 127) / 128;
  int64_t mine = 0;
  for (int64_t g = thread * per_thread; g < min((thread + 1) * per_thread, num_groups); ++g) mine += work_of<kGroup>(a, g);
  int64_t sum = lanes_up_to(mine);
  if (lane == 31) s.warp_sums[warp] = sum;
  warpgroup_sync(warpgroup);
  int64_t total = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (w < warp) sum += s.warp_sums[w];
    total += s.warp_sums[w];
  }
  const int64_t begin = total * part / parts, end = total * (part + 1) / parts;
  if (begin >= sum - mine && begin < sum) {
    int64_t group = thread * per_thread, done = begin - (sum - mine);
    for (int64_t n; done >= (n = work_of<kGroup>(a, group)); ++group) done -= n;
    s.group = group;
    s.done = done;
  }
  warpgroup_sync(warpgroup);
  return {s.group, s.done, end - begin};
}

// Tiles [begin, end) of a group; not always any.
struct Tiles {
  int64_t group;
  int begin, end;
};

// Takes the next group's share of a range. False at its end.
template <int kGroup>
__device__ __forceinline__ bool next_tiles(const LogitsArgs& a, WorkRange& range, Tiles& tiles) {
  if (range.left <= 0) return false;
  const int64_t end = min(work_of<kGroup>(a, range.group), range.done + range.left);
  tiles = {range.group, static_cast<int>(max(range.done - kGroupStart, int64_t{0})), static_cast<int>(max(end - kGroupStart, int64_t{0}))};
  range = {range.group + 1, 0, range.left - (end - range.done)};
  return true;
}

// `word`, for nothing = 0, and in front of the wgmma_fence that follows.
__device__ __forceinline__ uint32_t move_after(uint32_t nothing, uint32_t word) {
  uint32_t moved;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(moved) : "r"(word), "r"(nothing));
  return moved;
}

template <int kHeads, int kTokens>
struct Scorer {
  static constexpr int kColumns = kHeads * kTokens;
  static_assert(kColumns == 64 || kColumns == 128);
  static constexpr int kSums = kColumns / 2;  // of a thread
  static constexpr int kQueryBytes = kColumns * kIndexerDim;

  const LogitsArgs& a;
  const int lane, quad;  // quad: which of the four threads that share two rows
  uint8_t* const queries;
  const uint32_t shared_queries;
  float weights[kColumns / 4];

  __device__ Scorer(const LogitsArgs& args, uint8_t* queries)
      : a(args),
        lane(threadIdx.x % 32),
        quad(threadIdx.x % 4),
        queries(queries),
        shared_queries(static_cast<uint32_t>(__cvta_generic_to_shared(queries))) {}

  // The row of a tile, of the two that a thread has sums of, whose logit it writes; of one token the lower half of a quad's lanes do.
  __device__ int own_row() const { return threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * (quad & 1); }
  __device__ bool writes() const { return kTokens == 2 || quad < 2; }

  // Queries and weights of tokens from `first` on. Between two barriers of the warpgroup.
  __device__ void load_queries(int64_t first) {
    for (int i = threadIdx.x % 128; i < kColumns * 2; i += 128) {
      const int column = i / 2, half = i % 2;  // 64 bytes of a vector
      const int64_t token = first + column / kHeads;
      const int head = column % kHeads;
      uint4 v[4] = {};
      if (token < a.num_tokens && head < a.heads) {
        const auto* source = reinterpret_cast<const uint4*>(a.q + (token * a.heads + head) * kIndexerDim) + 4 * half;
#pragma unroll
        for (int c = 0; c < 4; ++c) v[c] = __ldg(source + c);
      }
      auto* const target = reinterpret_cast<uint4*>(queries + column * kIndexerDim);
      target[(4 * half + 0) ^ (column % 8)] = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
      target[(4 * half + 1) ^ (column % 8)] = make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
      target[(4 * half + 2) ^ (column % 8)] = make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
      target[(4 * half + 3) ^ (column % 8)] = make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
    }
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const int column = i / 2 * 8 + quad * 2 + i % 2;
      const int64_t token = first + column / kHeads;
      const int head = column % kHeads;
      weights[i] = token < a.num_tokens && head < a.heads ? a.weights[token * a.heads + head] : 0.0f;
    }
  }

  // What load_queries will want of `first`, into L2.
  __device__ void prefetch_queries(int64_t first) const {
    const int64_t line = (first * a.heads * kIndexerDim) / 128 + threadIdx.x % 128;
    if (line < a.num_tokens * a.heads) ptx::prefetch_l2(a.q + line * 128);
  }

  // Starts sums = rows x queries. Thread c of a quad has 16 bytes of row[i] at 16 c and at 64 + 16 c. The words that wgmma wants side by
  // side come from different loads, so each is moved once more: not before `nothing` is known, a zero that is none to the compiler, or a
  // load would be waited for as soon as it is issued.
  __device__ void multiply(float (&sums)[kSums], const uint4 (&row)[2][2], uint32_t nothing) const {
    const uint64_t descriptor = ptx::wgmma_descriptor(shared_queries);
    uint32_t words[4][4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint4& upper = row[0][s / 2];
      const uint4& lower = row[1][s / 2];
      words[s][0] = move_after(nothing, s % 2 == 0 ? upper.x : upper.z);
      words[s][1] = move_after(nothing, s % 2 == 0 ? lower.x : lower.z);
      words[s][2] = move_after(nothing, s % 2 == 0 ? upper.y : upper.w);
      words[s][3] = move_after(nothing, s % 2 == 0 ? lower.y : lower.w);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) ptx::wgmma_e4m3_rs(sums, words[s], descriptor + 2 * s, s > 0);
    ptx::wgmma_commit();
  }

  // Of token quad / 2 (with two) and row quad % 2 of this thread's.
  __device__ float weighted_sum(const float (&sums)[kSums]) const {
    float total[kTokens][2] = {};
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int column = i / 4 * 8;  // of the first in the group of eight
      float& sum = total[column / kHeads][i / 2 % 2];
      sum += weights[i / 4 * 2 + i % 2] * ptx::relu_nan(sums[i]);
    }
    const bool second = (quad & 1) != 0;
    float of_row[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float keep = second ? total[t][1] : total[t][0], give = second ? total[t][0] : total[t][1];
      of_row[t] = keep + __shfl_xor_sync(0xFFFFFFFFu, give, 1);
    }
    if constexpr (kTokens == 1) return of_row[0] + __shfl_xor_sync(0xFFFFFFFFu, of_row[0], 2);
    const bool later = quad >= 2;
    const float keep = later ? of_row[kTokens - 1] : of_row[0], give = later ? of_row[0] : of_row[kTokens - 1];
    return keep + __shfl_xor_sync(0xFFFFFFFFu, give, 2);
  }
};

}  // namespace strata::cuda::sm90
