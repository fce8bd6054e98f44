// Combines the splits of a token (V4 14.4). A group of warps per head divides the splits among its warps, with sixteen value dimensions per
// thread. Floor: each split is read once, 1 KB. In practice the time is that of a few dependent loads, so a warp issues the loads of all
// its splits together.
#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/device/units.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/launch.h"
#include "backends/cuda/sparse_attn_decode/sm90/combined_head.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/rotation.cuh"
#include "core/ceil_div.h"

namespace strata::cuda::sparse_decode {
namespace {

constexpr int kCombineWarps = 8, kCombineThreads = 32 * kCombineWarps, kUnits = kValueDim / 256;
// One warp per head takes at most kFewSplits splits, all loaded at once: few registers, so that four CTAs fit on an SM. Each of two warps
// takes at most kManySplits; each of four loads kManySplits at a time.
constexpr int kFewSplits = 4, kMaxBlocks = 4, kScheduledBlocks = 3, kManySplits = 8, kScheduledGroup = 4;

// Eight value dimensions.
struct Unit {
  float v[8];
};

// Stores eight dimensions of a result: 16 bytes, unit `at` of the head.
__device__ __forceinline__ void store_unit(const DecodeArgs& a, int32_t token, int32_t head, int at, const Unit& sum, float factor,
                                           bool rotates, const float2 (&rotation)[4]) {
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  uint16_t* target = a.out + batch * a.out_batch_stride + query * a.out_query_stride + head * a.out_head_stride + 8 * at;
  const auto pair = [&](int i) { return ptx::cvt_bf16x2(sum.v[i] * factor, sum.v[i + 1] * factor); };
  uint4 v = {pair(0), pair(2), pair(4), pair(6)};
  if (rotates) v = rotate_back(v, rotation);
  ptx::st_global(target, v);
}

// A warp's state of its splits of a head.
struct Ends {
  float largest_lse, sum, max_logit;  // base 2; initially -inf, 0, -inf
};

// Shared memory of a CTA with several warps per head.
constexpr int64_t kSharedOfGroups = kCombineWarps * (32 * kUnits * sizeof(Unit) + sizeof(Ends));

// The splits of an evenly cut token. Loaded before it is known which splits exist: all have space.
struct EvenSplits {
  int32_t token;

  __device__ __forceinline__ int32_t first(const DecodeArgs& a) const { return token * a.num_splits; }
  __device__ __forceinline__ int32_t room(const DecodeArgs& a) const { return a.num_splits; }
  __device__ __forceinline__ Lengths lengths(const DecodeArgs& a) const { return Lengths(a, token / a.num_queries); }
  __device__ __forceinline__ TokenRows rows(const DecodeArgs& a, const Lengths& lengths) const { return TokenRows(a, lengths); }
};
// The splits of a token that a schedule has cut: a CombineRow.
struct ScheduledSplits {
  int32_t token = -1, first_split = 0, splits = 0;
  struct NoLengths {};
  struct Rows {
    int32_t splits;
    __device__ __forceinline__ bool has(int32_t split) const { return split < splits; }
    __device__ __forceinline__ bool is_cut() const { return true; }
  };

  __device__ __forceinline__ int32_t first(const DecodeArgs&) const { return first_split; }
  __device__ __forceinline__ int32_t room(const DecodeArgs&) const { return splits; }
  __device__ __forceinline__ NoLengths lengths(const DecodeArgs&) const { return {}; }
  __device__ __forceinline__ Rows rows(const DecodeArgs&, NoLengths) const { return {splits}; }
};

// Combines the CTA's heads from `first_head` on. A head has kGroup warps, each with every kGroup-th split; each lane holds one split's lse.
// kSplitsPerWarp splits are loaded at a time; kOnce: a warp has no more. added() is called after the splits. Called by the whole CTA.
template <int kGroup, int kSplitsPerWarp, bool kOnce, class Splits, class Added>
__device__ __forceinline__ void combine_heads(const DecodeArgs& a, const Splits& splits, int32_t first_head, const Added& added) {
  constexpr int kLanes = 32, kStride = kGroup * kLanes;
  __shared__ Unit shared_out[kGroup > 1 ? kCombineWarps : 1][kUnits][kLanes];
  __shared__ Ends shared_ends[kCombineWarps];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, in_group = warp % kGroup;
  const int32_t token = splits.token, head = first_head + warp / kGroup, room = splits.room(a);
  const bool exists = head < a.num_heads;
  const int64_t first_split = int64_t{splits.first(a)} * a.num_heads + (exists ? head : 0);
  const auto of_split = [&](const float* values, int32_t split) {
    return __uint_as_float(ptx::ld_current_if(split < room, values + first_split + static_cast<int64_t>(split) * a.num_heads, 0));
  };
  const uint4* split_values = reinterpret_cast<const uint4*>(a.split_out + first_split * kValueDim) + lane;
  uint4 ahead[kSplitsPerWarp][kUnits];
  const auto issue_loads = [&](int32_t first) {
#pragma unroll
    for (int k = 0; k < kSplitsPerWarp; ++k) {
      const int32_t split = first + k * kGroup;
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        ahead[k][j] =
            ptx::ld_once_if(split < room, split_values + static_cast<int64_t>(split) * a.num_heads * (kValueDim / 8) + kLanes * j);
      }
    }
  };
  const auto lengths = splits.lengths(a);
  int32_t lane_split = in_group + kGroup * lane;
  float lse = of_split(a.split_lse, lane_split), unshift = of_split(a.split_unshift, lane_split),
        max_logit = of_split(a.split_max, lane_split);
  const float sink = __uint_as_float(ptx::ld_current_if(a.sink != nullptr && exists, a.sink + head, 0xFF800000u));
  issue_loads(in_group);
  const float2 rotation = a.positions != nullptr ? load_pair_rotation(a, token, lane) : float2{};
  const auto rows = splits.rows(a, lengths);
  if (!rows.is_cut()) return;  // the attention kernel has written the result
  if (!rows.has(lane_split)) lse = max_logit = -INFINITY;
  float largest = lse;
  for (int32_t split = lane_split + kStride; !kOnce && rows.has(split); split += kStride) {
    largest = fmaxf(largest, of_split(a.split_lse, split));
    max_logit = fmaxf(max_logit, of_split(a.split_max, split));
  }
  largest = lanes_max(largest);
  const CombinedHead of_warp(largest);
  float sum = 0.0f;
  Unit out[kUnits] = {};
  for (int32_t base = in_group; rows.has(base); base += kStride, lane_split += kStride) {
    if (!kOnce && base > in_group) {
      issue_loads(base);
      lse = of_split(a.split_lse, lane_split), unshift = of_split(a.split_unshift, lane_split);
      if (!rows.has(lane_split)) lse = -INFINITY;
    }
    const float weight = of_warp.weight(lse), split_factor = weight * unshift;
    sum += weight;
    for (int first = 0; first < (kOnce ? 1 : kLanes) && rows.has(base + first * kGroup); first += kSplitsPerWarp) {
      if (first > 0) issue_loads(base + first * kGroup);
#pragma unroll
      for (int k = 0; k < kSplitsPerWarp; ++k) {
        if (!rows.has(base + (first + k) * kGroup)) break;
        const float factor = __shfl_sync(~0u, split_factor, first + k);
#pragma unroll
        for (int j = 0; j < kUnits; ++j) add_weighted(out[j].v, factor, ahead[k][j]);
      }
    }
    if (kOnce) break;
  }
  added();
  Ends ends{largest, lanes_sum(sum), lanes_max(max_logit)};
  if constexpr (kGroup > 1) {
    if (in_group > 0) {
#pragma unroll
      for (int j = 0; j < kUnits; ++j) shared_out[warp][j][lane] = out[j];
    }
    if (lane == 0) shared_ends[warp] = ends;
    __syncthreads();
    if (in_group > 0) return;
#pragma unroll
    for (int other = 1; other < kGroup; ++other) {
      largest = fmaxf(largest, shared_ends[warp + other].largest_lse);
      ends.max_logit = fmaxf(ends.max_logit, shared_ends[warp + other].max_logit);
    }
    const CombinedHead of_group(largest);
    const float own = of_group.weight(ends.largest_lse);
    ends.largest_lse = largest, ends.sum *= own;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) out[j].v[i] *= own;
    }
    for (int other = warp + 1; other < warp + kGroup; ++other) {
      const float factor = of_group.weight(shared_ends[other].largest_lse);
      ends.sum += factor * shared_ends[other].sum;
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
#pragma unroll
        for (int i = 0; i < 8; ++i) out[j].v[i] += factor * shared_out[other][j][lane].v[i];
      }
    }
  }
  if (!exists) return;
  const CombinedHead combined(ends.largest_lse);
  const float inverse = combined.inverse(ends.sum, sink * kLog2e);
  // The last unit of the last lanes has the rotary dimensions.
  constexpr int kPairs = 4, kFirstRotated = kLanes - kRotaryDims / 8;
  float2 of_pairs[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int from = max(lane - kFirstRotated, 0) * kPairs + i;
    of_pairs[i] = {__shfl_sync(~0u, rotation.x, from), __shfl_sync(~0u, rotation.y, from)};
  }
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const bool rotates = j == kUnits - 1 && lane >= kFirstRotated && a.positions != nullptr;
    store_unit(a, token, head, lane + kLanes * j, out[j], inverse, rotates, of_pairs);
  }
  if (lane == 0) combined.store(a, token, head, ends.sum, ends.max_logit);
}

template <int kGroup>
__global__ void __launch_bounds__(kCombineThreads, kGroup == 1 ? kMaxBlocks : 2)
    sparse_decode_combine_kernel(const __grid_constant__ DecodeArgs a) {
  if (!a.combine_first) ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const auto added = [&] {
    if (a.combine_first) ptx::launch_dependents();
  };
  const EvenSplits splits{static_cast<int32_t>(blockIdx.x)};
  const int32_t first_head = static_cast<int32_t>(blockIdx.y) * (kCombineWarps / kGroup);
  combine_heads<kGroup, kGroup == 1 ? kFewSplits : kManySplits, /*kOnce=*/kGroup <= 2>(a, splits, first_head, added);
}

// The number of cut tokens is in the schedule. The CTAs share units of heads: eight heads of a token with few splits, two of one with
// many.
__global__ void __launch_bounds__(kCombineThreads, kScheduledBlocks) scheduled_combine_kernel(const __grid_constant__ DecodeArgs a) {
  __shared__ int32_t of_warps[kCombineWarps];
  __shared__ ScheduledSplits shared_splits;
  __shared__ int32_t shared_first_unit;
  const int thread = static_cast<int>(threadIdx.x);
  const auto heads_of_unit = [](int32_t splits) { return splits <= 2 * kFewSplits ? kCombineWarps : kCombineWarps / kScheduledGroup; };
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
#pragma unroll 1
  for (int32_t first = 0; first < a.num_combine_rows; first += kCombineThreads) {
    ScheduledSplits own;
    if (first + thread < a.num_combine_rows) {
      const int32_t* const row = a.combine_rows + 4 * int64_t{first + thread};
      own.token = row[0], own.first_split = row[1], own.splits = row[2];
    }
    const int32_t heads = heads_of_unit(own.splits), units = own.token < 0 ? 0 : (a.num_heads + heads - 1) / heads;
    const UnitRange numbers = number_units(units, of_warps);
#pragma unroll 1
    for (auto unit = static_cast<int32_t>(blockIdx.x); unit < numbers.all; unit += static_cast<int32_t>(gridDim.x)) {
      if (numbers.has(unit)) shared_splits = own, shared_first_unit = numbers.first;
      __syncthreads();
      const ScheduledSplits splits = shared_splits;
      const int32_t first_head = (unit - shared_first_unit) * heads_of_unit(splits.splits);
      if (heads_of_unit(splits.splits) == kCombineWarps) {
        combine_heads<1, kFewSplits, false>(a, splits, first_head, [] {});
      } else {
        combine_heads<kScheduledGroup, kFewSplits, false>(a, splits, first_head, [] {});
      }
      __syncthreads();  // before the next unit
    }
  }
}

// How many CTAs of this kernel an SM may hold. CTAs that start concurrently with the attention kernel would crowd the few SMs that it
// leaves idle. So no more per SM than needed for all to fit there, or where they do not fit, only a few.
int64_t blocks_of_sm(int64_t blocks, int64_t attention_blocks, int64_t num_sms, int group) {
  const int64_t most = group == 1 ? kMaxBlocks : 2, few = group == 1 ? 2 : 1, idle = num_sms - attention_blocks;
  if (idle > 0 && blocks <= most * idle) return ceil_div(blocks, idle);
  return std::clamp(ceil_div(blocks, num_sms), few, most);
}

}  // namespace

void launch_combine(const DecodeArgs& args, int64_t num_tokens, int64_t attention_blocks, const ExecutionContext& context) {
  // Few warps per head where there are few splits, so that few CTAs wait for SMs of the attention kernel. The number of warps fixes the
  // order of the sum: where the order must not depend on the number of splits, it is that of the most splits.
  const bool fixed_order = args.tiles_per_split > 0;
  const int group = fixed_order ? 4 : args.num_splits <= kFewSplits ? 1 : args.num_splits <= 2 * kManySplits ? 2 : 4;
  const auto kernel = group == 1   ? sparse_decode_combine_kernel<1>
                      : group == 2 ? sparse_decode_combine_kernel<2>
                                   : sparse_decode_combine_kernel<4>;
  const int64_t blocks_of_token = ceil_div(args.num_heads, kCombineWarps / group);
  const int64_t blocks = blocks_of_sm(num_tokens * blocks_of_token, attention_blocks, capabilities(context.device).num_sms, group);
  // Shared memory keeps one more CTA off the SM.
  constexpr int64_t kSharedOfSm = 228 * 1024;
  const int64_t shared_bytes = kSharedOfSm / (blocks + 1) - (group > 1 ? kSharedOfGroups : 0);
  allow_shared_bytes(kernel, kSharedOfSm / 2);
  const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(blocks_of_token));
  launch_early("sparse_decode_combine_kernel", kernel,
               {.grid = grid, .block = dim3(kCombineThreads), .shared_bytes = static_cast<size_t>(shared_bytes)}, context, args);
}

void launch_scheduled_combine(const DecodeArgs& args, const ExecutionContext& context) {
  // As many CTAs as units, up to those that run at once: idle CTAs would delay the next product.
  const int64_t units = int64_t{args.num_combine_rows} * ceil_div(args.num_heads, kCombineWarps / kScheduledGroup);
  const dim3 grid(static_cast<unsigned>(std::min(units, int64_t{kScheduledBlocks} * capabilities(context.device).num_sms)));
  launch_early("scheduled_combine_kernel", scheduled_combine_kernel, {.grid = grid, .block = dim3(kCombineThreads)}, context, args);
}

}  // namespace strata::cuda::sparse_decode
