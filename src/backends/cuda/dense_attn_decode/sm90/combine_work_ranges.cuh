// Combines the splits of sequences that several work ranges share. A unit of work is eight pairs of a sequence with few splits, or fewer
// pairs of one with many, whose splits several warps then share. A thread has sixteen dimensions of a pair. Floor: each split is read once,
// 1 KB. In practice the time is that of a few dependent loads.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/problem.cuh"
#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/device/units.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/runtime/early_launch.cuh"

namespace strata::cuda::dense_decode {

inline constexpr int kCombineWarps = 8, kCombineThreads = kCombineWarps * kWarpSize;
static_assert(kMaxWorkRanges <= kCombineThreads);

// Warps per pair; each has kAtOnce splits in flight. Enough warps that all splits are in flight at once; with few splits one warp loads
// them in two iterations, which is as fast.
template <int kAtOnce>
constexpr int combine_warps(int32_t splits) {
  return splits <= 2 * kAtOnce ? 1 : splits <= 4 * kAtOnce ? 4 : kCombineWarps;
}

struct CombineShared {
  float sums[kCombineWarps][16][kWarpSize];
  int32_t of_warps[kCombineWarps];
  SplitSequence split_sequence;    // the unit's sequence
  int32_t work_range, first_unit;  // of that
};

// A pair's splits. This warp has a share of them: one of `group` warps that together compute the pair's result.
template <int kAtOnce>
__device__ __forceinline__ void combine_pair(const WorkRangeArgs& a, CombineShared& shared, const SplitSequence& split_sequence,
                                             int32_t work_range, int32_t row, bool exists, int group) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize, in_group = warp % group;
  const auto index_of = [&](int32_t i) { return int64_t{split_slot_of(work_range, i)} * a.split_pairs + row; };
  const auto lse_of = [&](int32_t i) {
    return __uint_as_float(ptx::ld_if(i < split_sequence.splits, a.split_lse + index_of(i), 0xFF800000u));
  };
  float largest = -INFINITY, base = 0.0f, total = 0.0f;
  float sums[2][8] = {};
  // A lane's share of the lse values: in flight at once, together with the first splits.
  constexpr int kHeld = kAtOnce > 2 ? kMaxWorkRanges / kWarpSize : 1;
  float held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) held[j] = lse_of(lane + j * kWarpSize);
  const auto for_each_lse = [&](const auto& f) {
#pragma unroll
    for (const float lse : held) f(lse);
    if constexpr (kHeld * kWarpSize < kMaxWorkRanges) {
#pragma unroll 1
      for (int32_t i = lane + kHeld * kWarpSize; i < split_sequence.splits; i += kWarpSize) f(lse_of(i));
    }
  };
  for (int32_t first = in_group; first < split_sequence.splits; first += kAtOnce * group) {
    uint4 values[kAtOnce][2];
    float2 factors[kAtOnce];
    float lse[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int32_t i = first + k * group;
      const bool valid = i < split_sequence.splits;
      const int64_t index = index_of(valid ? i : 0);
      const uint4* of_split = reinterpret_cast<const uint4*>(a.split_out + index * kValueDim) + lane;
      lse[k] = lse_of(i);
      factors[k].x = __uint_as_float(ptx::ld_if(valid, &a.split_factors[index].x, 0));
      factors[k].y = __uint_as_float(ptx::ld_if(valid, &a.split_factors[index].y, 0));
#pragma unroll
      for (int half = 0; half < 2; ++half) values[k][half] = ptx::ld_once_if(valid, of_split + half * kWarpSize);
    }
    if (first == in_group) {
      for_each_lse([&](float lse) { largest = fmaxf(largest, lse); });
      largest = lanes_max(largest);
      base = largest == -INFINITY ? 0.0f : largest;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (lse[k] == -INFINITY) continue;  // a split without rows
      const float weight = ptx::ex2(lse[k] - base);
      add_weighted(sums[0], weight * factors[k].x, values[k][0]);
      add_weighted(sums[1], weight * factors[k].y, values[k][1]);
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
  const int32_t pair = split_sequence.first_pair + row, query = a.heads.divide(pair);
  const int64_t token = split_sequence.token + query, head = pair - query * a.num_heads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint16_t* target = a.out + token * a.out_token_stride + head * a.out_head_stride + half * (kValueDim / 2) + 8 * lane;
    sparse_prefill::store_dims(target, sums[half], inverse, a.out_aligned);
  }
  if (lane == 0 && a.lse != nullptr) a.lse_of(token, head) = empty ? INFINITY : (base + __log2f(total)) * kLn2;
}

// kAtOnce: 4 where sequences have many splits, 2 where they have few and more CTAs fit on an SM.
template <int kAtOnce>
inline constexpr int kCombineBlocks = kAtOnce > 2 ? 2 : 3;
template <int kAtOnce>
__global__ void __launch_bounds__(kCombineThreads, kCombineBlocks<kAtOnce>)
    combine_work_ranges_kernel(const __grid_constant__ WorkRangeArgs a) {
  __shared__ CombineShared shared;
  if (a.schedule != nullptr && ScheduledWorkRange(a.schedule, 0).to_combine(a.in_clusters) == 0) {
    // The next kernel takes this kernel's end as the attention's end, so one CTA waits for it. The other CTAs free their SMs at once.
    if (blockIdx.x == 0) start_early();
    return;
  }
  start_early();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
  SplitSequence own{};
  if (thread < a.num_work_ranges) own = a.split_sequences[thread];
  const int32_t pairs = min(own.pairs - own.first_pair, a.split_pairs),
                units = own.splits > 0 ? ceil_div32(pairs, kCombineWarps / combine_warps<kAtOnce>(own.splits)) : 0;
  const UnitRange numbers = number_units(units, shared.of_warps);
  for (int32_t unit = static_cast<int32_t>(blockIdx.x); unit < numbers.all; unit += static_cast<int32_t>(gridDim.x)) {
    if (numbers.has(unit)) shared.split_sequence = own, shared.work_range = thread, shared.first_unit = numbers.first;
    __syncthreads();
    const int32_t work_range = shared.work_range, in_sequence = unit - shared.first_unit;
    const SplitSequence split_sequence = shared.split_sequence;
    const int group = combine_warps<kAtOnce>(split_sequence.splits);
    const int32_t row = in_sequence * (kCombineWarps / group) + warp / group;
    const bool exists = row < min(split_sequence.pairs - split_sequence.first_pair, a.split_pairs);
    combine_pair<kAtOnce>(a, shared, split_sequence, work_range, exists ? row : 0, exists, group);
    __syncthreads();  // before the next unit
  }
}

// As many CTAs as there may be units, up to those that run at once.
inline void launch_combine_work_ranges(const WorkRangeArgs& args, int64_t num_sms, const ExecutionContext& context) {
  const int64_t units = int64_t{std::min(args.num_sequences, args.num_work_ranges)} * args.split_pairs;
  const bool few_splits = args.num_work_ranges <= 4 * args.num_sequences;
  const auto blocks = static_cast<unsigned>(std::min(units, (few_splits ? kCombineBlocks<2> : kCombineBlocks<4>)*num_sms));
  launch_early("combine_work_ranges_kernel", few_splits ? combine_work_ranges_kernel<2> : combine_work_ranges_kernel<4>,
               {.grid = dim3(blocks), .block = dim3(kCombineThreads)}, context, args);
}

}  // namespace strata::cuda::dense_decode
