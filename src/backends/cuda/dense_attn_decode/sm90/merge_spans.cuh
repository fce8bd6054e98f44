// One softmax from the parts of the sequences that several spans share. A unit of work is eight pairs of a sequence that has few parts, or
// fewer of one that has many, whose parts several warps then share; sixteen lanes of a pair a thread. Floor: the parts are read once, 1 KB
// each; in truth the time is that of a few dependent loads.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/problem.cuh"
#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/device/units.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/runtime/early_launch.cuh"

namespace strata::cuda::dense_decode {

inline constexpr int kMergeWarps = 8, kMergeThreads = kMergeWarps * kWarpSize;
static_assert(kMostSpans <= kMergeThreads);

// Warps of a pair, each of which has kAtOnce parts on their way at once: as many as have all; of few parts one has them in two turns, which
// is as fast.
template <int kAtOnce>
constexpr int merging_warps(int32_t parts) {
  return parts <= 2 * kAtOnce ? 1 : parts <= 4 * kAtOnce ? 4 : kMergeWarps;
}

struct MergeShared {
  float sums[kMergeWarps][16][kWarpSize];
  int32_t of_warps[kMergeWarps];
  Parted parted;             // the unit's sequence
  int32_t span, first_unit;  // of that
};

// A pair's parts, a share of which is this warp's: one of `group`, which all have the result's head in common.
template <int kAtOnce>
__device__ __forceinline__ void merge_pair(const SpanArgs& a, MergeShared& shared, const Parted& parted, int32_t span, int32_t row,
                                           bool exists, int group) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize, in_group = warp % group;
  const auto index_of = [&](int32_t i) { return int64_t{part_slot_of(span, i)} * a.part_rows + row; };
  const auto lse_of = [&](int32_t i) { return __uint_as_float(ptx::ld_if(i < parted.parts, a.part_lse + index_of(i), 0xFF800000u)); };
  float largest = -INFINITY, base = 0.0f, total = 0.0f;
  float sums[2][8] = {};
  // A lane's share; on their way at once, and the first parts with them.
  constexpr int kHeld = kAtOnce > 2 ? kMostSpans / kWarpSize : 1;
  float held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) held[j] = lse_of(lane + j * kWarpSize);
  const auto for_each_lse = [&](const auto& f) {
#pragma unroll
    for (const float lse : held) f(lse);
    if constexpr (kHeld * kWarpSize < kMostSpans) {
#pragma unroll 1
      for (int32_t i = lane + kHeld * kWarpSize; i < parted.parts; i += kWarpSize) f(lse_of(i));
    }
  };
  for (int32_t first = in_group; first < parted.parts; first += kAtOnce * group) {
    uint4 part[kAtOnce][2];
    float2 factors[kAtOnce];
    float lse[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int32_t i = first + k * group;
      const bool wanted = i < parted.parts;
      const int64_t index = index_of(wanted ? i : 0);
      const uint4* of_part = reinterpret_cast<const uint4*>(a.part_out + index * kValueDim) + lane;
      lse[k] = lse_of(i);
      factors[k].x = __uint_as_float(ptx::ld_if(wanted, &a.part_factors[index].x, 0));
      factors[k].y = __uint_as_float(ptx::ld_if(wanted, &a.part_factors[index].y, 0));
#pragma unroll
      for (int half = 0; half < 2; ++half) part[k][half] = ptx::ld_once_if(wanted, of_part + half * kWarpSize);
    }
    if (first == in_group) {
      for_each_lse([&](float lse) { largest = fmaxf(largest, lse); });
      largest = lanes_max(largest);
      base = largest == -INFINITY ? 0.0f : largest;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (lse[k] == -INFINITY) continue;  // of no rows
      const float weight = ptx::ex2(lse[k] - base);
      add_weighted(sums[0], weight * factors[k].x, part[k][0]);
      add_weighted(sums[1], weight * factors[k].y, part[k][1]);
    }
  }
  for_each_lse([&](float lse) { total += ptx::ex2(lse - base); });
  total = lanes_sum(total);
  if (group > 1) {
    if (in_group > 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) shared.sums[warp][i][lane] = sums[i / 8][i % 8];
    }
    __syncthreads();
    if (in_group > 0) return;
    for (int other = 1; other < group; ++other) {
#pragma unroll
      for (int i = 0; i < 16; ++i) sums[i / 8][i % 8] += shared.sums[warp + other][i][lane];
    }
  }
  if (!exists) return;
  const bool empty = total == 0.0f;
  const float inverse = empty ? 0.0f : 1.0f / total;
  const int32_t pair = parted.first_pair + row, query = a.heads.divide(pair);
  const int64_t token = parted.token + query, head = pair - query * a.num_heads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint16_t* target = a.out + token * a.out_token_stride + head * a.out_head_stride + half * (kValueDim / 2) + 8 * lane;
    sparse_prefill::store_lanes(target, sums[half], inverse, a.out_aligned);
  }
  if (lane == 0 && a.lse != nullptr) a.lse_of(token, head) = empty ? INFINITY : (base + __log2f(total)) * kLn2;
}

// kAtOnce: 4 where sequences have many parts, 2 where they have few, and more blocks find room on an SM.
template <int kAtOnce>
inline constexpr int kMergeBlocks = kAtOnce > 2 ? 2 : 3;
template <int kAtOnce>
__global__ void __launch_bounds__(kMergeThreads, kMergeBlocks<kAtOnce>) merge_spans_kernel(const __grid_constant__ SpanArgs a) {
  __shared__ MergeShared shared;
  if (a.schedule != nullptr && ScheduledSpan(a.schedule, 0).to_merge(a.in_clusters) == 0) {
    // Whoever is behind takes this kernel's end as that of the attention, so one block waits for it; the others make room at once.
    if (blockIdx.x == 0) start_early();
    return;
  }
  start_early();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
  Parted own{};
  if (thread < a.num_spans) own = a.parted[thread];
  const int32_t pairs = min(own.pairs - own.first_pair, a.part_rows),
                units = own.parts > 0 ? pieces_of(pairs, kMergeWarps / merging_warps<kAtOnce>(own.parts)) : 0;
  const UnitRange numbers = number_units(units, shared.of_warps);
  for (int32_t unit = static_cast<int32_t>(blockIdx.x); unit < numbers.all; unit += static_cast<int32_t>(gridDim.x)) {
    if (numbers.has(unit)) shared.parted = own, shared.span = thread, shared.first_unit = numbers.first;
    __syncthreads();
    const int32_t span = shared.span, in_sequence = unit - shared.first_unit;
    const Parted parted = shared.parted;
    const int group = merging_warps<kAtOnce>(parted.parts);
    const int32_t row = in_sequence * (kMergeWarps / group) + warp / group;
    const bool exists = row < min(parted.pairs - parted.first_pair, a.part_rows);
    merge_pair<kAtOnce>(a, shared, parted, span, exists ? row : 0, exists, group);
    __syncthreads();  // the next unit's
  }
}

// As many blocks as there may be units, up to those that run at a time.
inline void launch_merge_spans(const SpanArgs& args, int64_t num_sms, const ExecutionContext& context) {
  const int64_t units = int64_t{std::min(args.num_sequences, args.num_spans)} * args.part_rows;
  const bool few_parts = args.num_spans <= 4 * args.num_sequences;
  const auto blocks = static_cast<unsigned>(std::min(units, (few_parts ? kMergeBlocks<2> : kMergeBlocks<4>)*num_sms));
  launch_early("merge_spans_kernel", few_parts ? merge_spans_kernel<2> : merge_spans_kernel<4>,
               {.grid = dim3(blocks), .block = dim3(kMergeThreads)}, context, args);
}

}  // namespace strata::cuda::dense_decode
