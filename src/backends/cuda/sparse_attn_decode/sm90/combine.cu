// Merges the splits of a token (V4 14.4): a group of warps for each head, whose warps share the parts between them, sixteen value lanes a
// thread. Floor: the parts are read once, 1 KB each; in truth the time is that of a few dependent loads, so all of a warp's parts are
// asked for together.
#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/device/units.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/launch.h"
#include "backends/cuda/sparse_attn_decode/sm90/merged_head.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/rotation.cuh"
#include "core/ceil_div.h"

namespace strata::cuda::sparse_decode {
namespace {

constexpr int kCombineWarps = 8, kCombineThreads = 32 * kCombineWarps, kUnits = kValueDim / 256;
// A warp a head has at most so many parts, all asked for at a time: few registers, so that four blocks fit on an SM. Two warps have so many
// each, and four ask for so many at a time.
constexpr int kFewParts = 4, kMostBlocks = 4, kScheduledBlocks = 3, kManyParts = 8, kScheduledGroup = 4;

// Eight value lanes.
struct Unit {
  float v[8];
};

// Eight lanes of a result: 16 bytes, number `at` of the head's.
__device__ __forceinline__ void store_unit(const DecodeArgs& a, int32_t token, int32_t head, int at, const Unit& sum, float factor,
                                           bool rotates, const float2 (&rotation)[4]) {
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  uint16_t* target = a.out + batch * a.out_batch_stride + query * a.out_query_stride + head * a.out_head_stride + 8 * at;
  const auto pair = [&](int i) { return ptx::cvt_bf16x2(sum.v[i] * factor, sum.v[i + 1] * factor); };
  uint4 v = {pair(0), pair(2), pair(4), pair(6)};
  if (rotates) v = rotate_back(v, rotation);
  ptx::st_global(target, v);
}

// What a warp knows of its parts of a head.
struct Ends {
  float largest_lse, sum, max_logit;  // base 2; nothing yet: -inf, 0, -inf
};

// Of a block with several warps a head.
constexpr int64_t kSharedOfGroups = kCombineWarps * (32 * kUnits * sizeof(Unit) + sizeof(Ends));

// The parts of a token that is cut evenly. They are asked for before it is known which of them exist: all have space.
struct EvenParts {
  int32_t token;

  __device__ __forceinline__ int32_t first(const DecodeArgs& a) const { return token * a.num_splits; }
  __device__ __forceinline__ int32_t room(const DecodeArgs& a) const { return a.num_splits; }
  __device__ __forceinline__ Lengths lengths(const DecodeArgs& a) const { return Lengths(a, token / a.num_queries); }
  __device__ __forceinline__ TokenRows rows(const DecodeArgs& a, const Lengths& lengths) const { return TokenRows(a, lengths); }
};
// Of a token that a schedule has cut: a row of its merges.
struct ScheduledParts {
  int32_t token = -1, first_part = 0, parts = 0;
  struct NoLengths {};
  struct Rows {
    int32_t parts;
    __device__ __forceinline__ bool has(int32_t split) const { return split < parts; }
    __device__ __forceinline__ bool is_cut() const { return true; }
  };

  __device__ __forceinline__ int32_t first(const DecodeArgs&) const { return first_part; }
  __device__ __forceinline__ int32_t room(const DecodeArgs&) const { return parts; }
  __device__ __forceinline__ NoLengths lengths(const DecodeArgs&) const { return {}; }
  __device__ __forceinline__ Rows rows(const DecodeArgs&, NoLengths) const { return {parts}; }
};

// One of a block's heads, of those from `first_head` on: kGroup warps, each with every kGroup-th part, a lane for each of them, of which
// kPartsOfAWarp are asked for at a time; kOnce: a warp has no more. `added()` follows the parts. The whole block.
template <int kGroup, int kPartsOfAWarp, bool kOnce, class Parts, class Added>
__device__ __forceinline__ void merge_heads(const DecodeArgs& a, const Parts& parts, int32_t first_head, const Added& added) {
  constexpr int kLanes = 32, kStride = kGroup * kLanes;
  __shared__ Unit shared_out[kGroup > 1 ? kCombineWarps : 1][kUnits][kLanes];
  __shared__ Ends shared_ends[kCombineWarps];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, in_group = warp % kGroup;
  const int32_t token = parts.token, head = first_head + warp / kGroup, room = parts.room(a);
  const bool exists = head < a.num_heads;
  const int64_t first_part = int64_t{parts.first(a)} * a.num_heads + (exists ? head : 0);
  const auto of_split = [&](const float* values, int32_t split) {
    return __uint_as_float(ptx::ld_current_if(split < room, values + first_part + static_cast<int64_t>(split) * a.num_heads, 0));
  };
  const uint4* part = reinterpret_cast<const uint4*>(a.part_out + first_part * kValueDim) + lane;
  uint4 ahead[kPartsOfAWarp][kUnits];
  const auto ask = [&](int32_t first) {
#pragma unroll
    for (int k = 0; k < kPartsOfAWarp; ++k) {
      const int32_t split = first + k * kGroup;
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        ahead[k][j] = ptx::ld_once_if(split < room, part + static_cast<int64_t>(split) * a.num_heads * (kValueDim / 8) + kLanes * j);
      }
    }
  };
  const auto lengths = parts.lengths(a);
  int32_t of_lane = in_group + kGroup * lane;
  float lse = of_split(a.part_lse, of_lane), unshift = of_split(a.part_unshift, of_lane), max_logit = of_split(a.part_max, of_lane);
  const float sink = __uint_as_float(ptx::ld_current_if(a.sink != nullptr && exists, a.sink + head, 0xFF800000u));
  ask(in_group);
  const float2 rotation = a.positions != nullptr ? load_pair_rotation(a, token, lane) : float2{};
  const auto rows = parts.rows(a, lengths);
  if (!rows.is_cut()) return;  // the attention kernel has written the result
  if (!rows.has(of_lane)) lse = max_logit = -INFINITY;
  float largest = lse;
  for (int32_t split = of_lane + kStride; !kOnce && rows.has(split); split += kStride) {
    largest = fmaxf(largest, of_split(a.part_lse, split));
    max_logit = fmaxf(max_logit, of_split(a.part_max, split));
  }
  largest = lanes_max(largest);
  const MergedHead of_warp(largest);
  float sum = 0.0f;
  Unit out[kUnits] = {};
  for (int32_t base = in_group; rows.has(base); base += kStride, of_lane += kStride) {
    if (!kOnce && base > in_group) {
      ask(base);
      lse = of_split(a.part_lse, of_lane), unshift = of_split(a.part_unshift, of_lane);
      if (!rows.has(of_lane)) lse = -INFINITY;
    }
    const float weight = of_warp.weight(lse), of_part = weight * unshift;
    sum += weight;
    for (int first = 0; first < (kOnce ? 1 : kLanes) && rows.has(base + first * kGroup); first += kPartsOfAWarp) {
      if (first > 0) ask(base + first * kGroup);
#pragma unroll
      for (int k = 0; k < kPartsOfAWarp; ++k) {
        if (!rows.has(base + (first + k) * kGroup)) break;
        const float factor = __shfl_sync(~0u, of_part, first + k);
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
    const MergedHead of_group(largest);
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
  const MergedHead merged(ends.largest_lse);
  const float inverse = merged.inverse(ends.sum, sink * kLog2e);
  // The last unit of the last lanes is rotated.
  constexpr int kPairs = 4, kFirstRotated = kLanes - kRotaryLanes / 8;
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
  if (lane == 0) merged.store(a, token, head, ends.sum, ends.max_logit);
}

template <int kGroup>
__global__ void __launch_bounds__(kCombineThreads, kGroup == 1 ? kMostBlocks : 2)
    sparse_decode_combine_kernel(const __grid_constant__ DecodeArgs a) {
  if (!a.merge_first) ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const auto added = [&] {
    if (a.merge_first) ptx::launch_dependents();
  };
  const EvenParts parts{static_cast<int32_t>(blockIdx.x)};
  const int32_t first_head = static_cast<int32_t>(blockIdx.y) * (kCombineWarps / kGroup);
  merge_heads<kGroup, kGroup == 1 ? kFewParts : kManyParts, /*kOnce=*/kGroup <= 2>(a, parts, first_head, added);
}

// How many of them there are is in the schedule: the blocks share units of heads, eight of a token with few parts, and two of one with
// many.
__global__ void __launch_bounds__(kCombineThreads, kScheduledBlocks) scheduled_combine_kernel(const __grid_constant__ DecodeArgs a) {
  __shared__ int32_t of_warps[kCombineWarps];
  __shared__ ScheduledParts shared_parts;
  __shared__ int32_t shared_first_unit;
  const int thread = static_cast<int>(threadIdx.x);
  const auto heads_of_unit = [](int32_t parts) { return parts <= 2 * kFewParts ? kCombineWarps : kCombineWarps / kScheduledGroup; };
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
#pragma unroll 1
  for (int32_t first = 0; first < a.num_merges; first += kCombineThreads) {
    ScheduledParts own;
    if (first + thread < a.num_merges) {
      const int32_t* const row = a.merges + 4 * int64_t{first + thread};
      own.token = row[0], own.first_part = row[1], own.parts = row[2];
    }
    const int32_t heads = heads_of_unit(own.parts), units = own.token < 0 ? 0 : (a.num_heads + heads - 1) / heads;
    const UnitRange numbers = number_units(units, of_warps);
#pragma unroll 1
    for (auto unit = static_cast<int32_t>(blockIdx.x); unit < numbers.all; unit += static_cast<int32_t>(gridDim.x)) {
      if (numbers.has(unit)) shared_parts = own, shared_first_unit = numbers.first;
      __syncthreads();
      const ScheduledParts parts = shared_parts;
      const int32_t first_head = (unit - shared_first_unit) * heads_of_unit(parts.parts);
      if (heads_of_unit(parts.parts) == kCombineWarps) {
        merge_heads<1, kFewParts, false>(a, parts, first_head, [] {});
      } else {
        merge_heads<kScheduledGroup, kFewParts, false>(a, parts, first_head, [] {});
      }
      __syncthreads();  // the next unit's
    }
  }
}

// How many of the merge's blocks an SM may have. Those that start beside the attention kernel's would crowd the few SMs that these leave
// idle: no more on an SM than it takes for all to fit there, or where they do not, no more than a few.
int64_t blocks_of_sm(int64_t blocks, int64_t attention_blocks, int64_t num_sms, int group) {
  const int64_t most = group == 1 ? kMostBlocks : 2, few = group == 1 ? 2 : 1, idle = num_sms - attention_blocks;
  if (idle > 0 && blocks <= most * idle) return ceil_div(blocks, idle);
  return std::clamp(ceil_div(blocks, num_sms), few, most);
}

}  // namespace

void launch_combine(const DecodeArgs& args, int64_t num_tokens, int64_t attention_blocks, const ExecutionContext& context) {
  // Few warps a head where a few parts are all, so that few blocks wait for the attention kernel to leave its SMs. How many share them is
  // how they are added: where that must not follow from how many there may be, it is as for the most.
  const bool fixed_order = args.tiles_per_split > 0;
  const int group = fixed_order ? 4 : args.num_splits <= kFewParts ? 1 : args.num_splits <= 2 * kManyParts ? 2 : 4;
  const auto kernel = group == 1   ? sparse_decode_combine_kernel<1>
                      : group == 2 ? sparse_decode_combine_kernel<2>
                                   : sparse_decode_combine_kernel<4>;
  const int64_t blocks_of_token = ceil_div(args.num_heads, kCombineWarps / group);
  const int64_t blocks = blocks_of_sm(num_tokens * blocks_of_token, attention_blocks, capabilities(context.device).num_sms, group);
  // Shared memory keeps one more away.
  constexpr int64_t kSharedOfSm = 228 * 1024;
  const int64_t shared_bytes = kSharedOfSm / (blocks + 1) - (group > 1 ? kSharedOfGroups : 0);
  allow_shared_bytes(kernel, kSharedOfSm / 2);
  const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(blocks_of_token));
  launch_early("sparse_decode_combine_kernel", kernel,
               {.grid = grid, .block = dim3(kCombineThreads), .shared_bytes = static_cast<size_t>(shared_bytes)}, context, args);
}

void launch_scheduled_combine(const DecodeArgs& args, const ExecutionContext& context) {
  // As many as there may be units, up to those that run at a time: blocks with nothing to do keep the product behind waiting.
  const int64_t units = int64_t{args.num_merges} * ceil_div(args.num_heads, kCombineWarps / kScheduledGroup);
  const dim3 grid(static_cast<unsigned>(std::min(units, int64_t{kScheduledBlocks} * capabilities(context.device).num_sms)));
  launch_early("scheduled_combine_kernel", scheduled_combine_kernel, {.grid = grid, .block = dim3(kCombineThreads)}, context, args);
}

}  // namespace strata::cuda::sparse_decode
