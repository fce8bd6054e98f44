// The V3.2 indexer's keys: LayerNorm, rotation, Hadamard, quantisation, insertion: MLA 11.1-11.4 and 11.9. Half a warp per token with a key
// of 128 values in registers; other keys use a warp per token and shared memory. Floor: 256 bytes read and 132 written a token, negligible
// compared with the launch up to thousands of tokens. 4096 tokens on an H200: 1.7 us, copying as much 1.43.
#include <utility>

#include "backends/cuda/device/hadamard.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/store_words.cuh"
#include "backends/cuda/device/touch.cuh"
#include "backends/cuda/device/values.cuh"
#include "backends/cuda/indexer/impls.h"
#include "backends/cuda/indexer/smxx/indexer_vector.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/even_blocks.h"
#include "backends/cuda/runtime/grid.h"
#include "backends/cuda/runtime/implementation.h"

namespace strata::cuda {
namespace {

constexpr int kWarps = 4;
// Of a row of 128 values, the only width that is quantised: values per lane of half a warp.
constexpr int32_t kLaneValues = 8;
constexpr int kRowLanes = kIndexerDim / kLaneValues, kWords = kLaneValues / 2, kRun = kLaneValues / 2;
constexpr int32_t kKeyRotary = kIndexerDim / 2;  // of the values, half are rotary

struct KeyArgs {
  const Bf16* k;
  int64_t k_stride;
  int32_t dim;
  const float* weight;
  const float* bias;
  float eps;
  const int64_t* positions;
  const float* cos_sin;  // null: no rotation, and 0 rows
  int64_t cos_sin_stride, table_rows;
  int32_t rotary, first_rotary;
  RopePairing pairing;
  bool hadamard;
  const int64_t* slot_mapping;
  int64_t num_slots;
  PagedCache cache;
  CacheRows rows;    // of cache
  bool simple_rows;  // rows of e4m3, 16-byte aligned
};

// x = bf16(LayerNorm(k)).
__device__ void layer_norm(const KeyArgs& a, const Bf16* k, float* x, int lane) {
  float sum = 0.0f;
  for (int32_t i = lane; i < a.dim; i += kWarpSize) {
    x[i] = to_float(k[i]);
    sum += x[i];
  }
  const float mean = lanes_sum(sum) / static_cast<float>(a.dim);
  float squares = 0.0f;
  for (int32_t i = lane; i < a.dim; i += kWarpSize) squares = fmaf(x[i] - mean, x[i] - mean, squares);
  const float deviation = sqrtf(lanes_sum(squares) / static_cast<float>(a.dim) + a.eps);
  for (int32_t i = lane; i < a.dim; i += kWarpSize) x[i] = round_to_bf16((x[i] - mean) / deviation * a.weight[i] + a.bias[i]);
  __syncwarp();
}

// Lane l of a row has the four values from 4 l on of either half. "rotated": those of the half with the rotary values, which are then one
// run of every lane. "rest": those of the other half.
struct LaneRuns {
  int rotated, rest;
  __device__ __forceinline__ LaneRuns(const KeyArgs& a, int row_lane)
      : rotated(a.first_rotary + kRun * row_lane), rest(kIndexerDim / 2 - a.first_rotary + kRun * row_lane) {}
};

__device__ __forceinline__ void load_run(const float* p, float (&x)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(p);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
__device__ __forceinline__ void load_run(const float* p, float (&x)[2]) {
  const float2 v = *reinterpret_cast<const float2*>(p);
  x[0] = v.x, x[1] = v.y;
}

struct LaneValues {
  float rotated[kRun], rest[kRun];
  __device__ __forceinline__ void issue_loads(const float* values, const LaneRuns& runs) {
    load_run(values + runs.rotated, rotated);
    load_run(values + runs.rest, rest);
  }
};

__device__ __forceinline__ float sum_of(const float (&x)[kLaneValues]) {
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// words: the lane's values as bf16, those of `rotated` first. The sum of squares is about the mean of the lane's own values, so both sums
// are reduced over the lanes together. For two runs of n values the combined sum of squares is theirs plus the squared distance of their
// means times n / 2.
__device__ __forceinline__ void layer_norm_lanes(const KeyArgs& a, const LaneValues& weight, const LaneValues& bias,
                                                 uint32_t (&words)[kWords]) {
  constexpr float kDim = kIndexerDim;
  float x[kLaneValues], squares[kLaneValues];
  unpack_words(words, x);
  float sum = sum_of(x);
  const float own_mean = sum * (1.0f / kLaneValues);
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) {
    x[i] -= own_mean;
    squares[i] = x[i] * x[i];
  }
  float square = sum_of(squares);
#pragma unroll
  for (int step = 1; step < kRowLanes; step *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, sum, step), difference = sum - other;
    square =
        fmaf(difference, difference * (0.25f / static_cast<float>(step * kLaneValues)), square);  // half of it: the other lane adds as much
    square += __shfl_xor_sync(kAllLanes, square, step);
    sum += other;
  }
  const float factor = rsqrtf(fmaf(square, 1.0f / kDim, a.eps)), shift = (own_mean - sum * (1.0f / kDim)) * factor;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    x[i] = fmaf(fmaf(x[i], factor, shift), weight.rotated[i], bias.rotated[i]);
    x[kRun + i] = fmaf(fmaf(x[kRun + i], factor, shift), weight.rest[i], bias.rest[i]);
  }
  pack_words(x, words);
}

// Angles of a lane's rotary values: value * cosine + partner * sine, with the sign in the sine.
template <RopePairing kPairing>
class KeyRotation {
 public:
  __device__ __forceinline__ explicit KeyRotation(int row_lane)
      : second_(!kInterleaved && row_lane >= kRowLanes / 2), first_pair_(kInterleaved ? kPairs * row_lane : kRun * row_lane % kHalf) {}

  // Loads the angles of a position.
  __device__ __forceinline__ void issue_loads(const KeyArgs& a, int64_t position) {
    const float* const row = a.cos_sin + position * a.cos_sin_stride + first_pair_;
    load_run(row, cosines_);
    load_run(row + kHalf, sines_);
  }
  __device__ __forceinline__ void rotate(uint32_t (&words)[kRun / 2]) const {
    float x[kRun];
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) {
      const uint32_t partners = kInterleaved ? __byte_perm(words[i], 0, 0x1032) : __shfl_xor_sync(kAllLanes, words[i], kRowLanes / 2);
      const int low = kInterleaved ? i : 2 * i, high = kInterleaved ? i : 2 * i + 1;  // angles
      x[2 * i] = bf16_low(words[i]) * cosines_[low] + bf16_low(partners) * (second_ ? sines_[low] : -sines_[low]);
      x[2 * i + 1] = bf16_high(words[i]) * cosines_[high] + bf16_high(partners) * (kInterleaved || second_ ? sines_[high] : -sines_[high]);
    }
    pack_words(x, words);
  }

 private:
  static constexpr bool kInterleaved = kPairing == RopePairing::interleaved;
  static constexpr int kHalf = kKeyRotary / 2, kPairs = kInterleaved ? kRun / 2 : kRun;

  bool second_;  // half-split: the lane's values are in the second half
  int first_pair_;
  float cosines_[kPairs], sines_[kPairs];
};

// H x / sqrt(n) of the row. The butterflies are those of the column's bits. Their order does not matter, except that the lower half comes
// first.
__device__ __forceinline__ void hadamard_runs(const KeyArgs& a, uint32_t (&words)[kWords], int lane) {
  const auto in_order = [&] {
    if (a.first_rotary == 0) return;
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) std::swap(words[i], words[kRun / 2 + i]);
  };
  in_order();
  float x[kLaneValues];
  unpack_words(words, x);
  hadamard_lanes<kRowLanes>(x, lane);
  pack_words(x, words);
  in_order();
}

// Stores a key's values, if the row is valid. The whole warp calls it.
__device__ __forceinline__ void store_key(const KeyArgs& a, const uint32_t (&words)[kWords], RowAddress to, bool valid,
                                          const LaneRuns& runs, int row_lane) {
  const uint32_t amax = amax_bits<kRowLanes>(words);
  if (!a.simple_rows || __any_sync(kAllLanes, amax >= kBf16Infinity)) {
    // Neighbouring values for a lane: two runs of one half.
    const bool rotated = (row_lane >= kRowLanes / 2) == (a.first_rotary != 0);
    uint32_t row_words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int from = 2 * row_lane % kRowLanes + i / (kRun / 2), half = i % (kRun / 2);
      const uint32_t of_rotated = __shfl_sync(kAllLanes, words[half], from, kRowLanes),
                     of_rest = __shfl_sync(kAllLanes, words[kRun / 2 + half], from, kRowLanes);
      row_words[i] = rotated ? of_rotated : of_rest;
    }
    float x[kLaneValues];
    unpack_words(row_words, x);
    return store_row_128<true>(a.cache, to, x, row_lane, valid);
  }
  if (!valid) return;
  const auto scale = BlockScale::of_e4m3(amax_value(amax));
  uint32_t quantized[kWords / 2];
  quantize_e4m3(words, scale, quantized);
  *reinterpret_cast<uint32_t*>(to.data + runs.rotated) = quantized[0];
  *reinterpret_cast<uint32_t*>(to.data + runs.rest) = quantized[1];
  if (row_lane == 0) *reinterpret_cast<float*>(to.scales) = scale.value();
}

template <RopePairing kPairing>
__global__ void __launch_bounds__(kWarps* kWarpSize) indexer_key_insert_128_kernel(const __grid_constant__ KeyArgs a) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize), row_lane = lane % kRowLanes;
  const int64_t row = (int64_t{blockIdx.x} * (kWarps * kWarpSize) + threadIdx.x) / kRowLanes;
  const int64_t t = min(row, a.num_slots - 1);  // lanes past the end take part in reductions
  const LaneRuns runs(a, row_lane);
  KeyRotation<kPairing> rotation(row_lane);
  const Bf16* const k = a.k + t * a.k_stride;
  // Before the wait the row is prefetched, and data that no preceding kernel writes is loaded: weights, and what follows from the position
  // and the slot as they are at that time.
  int64_t speculative_position = 0, speculative_slot = 0;
  LaneValues weight, bias;
  RowAddress to{};
  bool issued = false;
  const auto look_up = [&](int64_t position, int64_t slot) {
    rotation.issue_loads(a, position);
    to = a.rows.row(max(slot, int64_t{0}));
  };
  const auto issue_loads = [&] {
    ptx::prefetch_l2(k + runs.rotated);
    ptx::prefetch_l2(k + runs.rest);
    speculative_position = speculative_load(a.positions + t);
    speculative_slot = speculative_load(a.slot_mapping + t);
    weight.issue_loads(a.weight, runs);
    bias.issue_loads(a.bias, runs);
    if (speculative_position < 0 || speculative_position >= a.table_rows) speculative_position = 0;
    look_up(speculative_position, speculative_slot);
    issued = true;
  };
  start_early(issue_loads);
  if (!issued) issue_loads();  // before sm_90
  const int64_t position = a.positions[t];
  const uint2 rotated = *reinterpret_cast<const uint2*>(k + runs.rotated), rest = *reinterpret_cast<const uint2*>(k + runs.rest);
  const int64_t slot = a.slot_mapping[t];
  // Always 0, but the assembler does not know it: otherwise it would compute on the key before issuing the other loads.
  const auto zero = static_cast<uint32_t>(__syncthreads_or(0));
  uint32_t words[kWords] = {rotated.x | zero, rotated.y | zero, rest.x | zero, rest.y | zero};
  layer_norm_lanes(a, weight, bias, words);
  if (__any_sync(kAllLanes, position != speculative_position || slot != speculative_slot)) look_up(position, slot);
  uint32_t rotary[kRun / 2] = {words[0], words[1]};
  rotation.rotate(rotary);
  words[0] = rotary[0], words[1] = rotary[1];
  if (a.hadamard) hadamard_runs(a, words, lane);
  store_key(a, words, to, slot >= 0 && row < a.num_slots, runs, row_lane);
}

__global__ void indexer_key_insert_kernel(const __grid_constant__ KeyArgs a) {
  extern __shared__ float vectors[];
  start_early();
  const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int64_t t = int64_t{blockIdx.x} * kWarps + warp;
  if (t >= a.num_slots) return;
  const int64_t slot = a.slot_mapping[t];
  float* const x = vectors + warp * a.dim;
  layer_norm(a, a.k + t * a.k_stride, x, lane);  // does not wait for the slot: few tokens have none
  if (slot < 0) return;
  if (a.cos_sin != nullptr) rotate_vector(x, a.cos_sin + a.positions[t] * a.cos_sin_stride, a.first_rotary, a.rotary, a.pairing, lane);
  if (a.hadamard) hadamard_vector(x, a.dim, lane);  // the store rounds its result to bf16
  if (a.dim == kIndexerDim) {
    float row[kIndexerDim / kWarpSize];
#pragma unroll
    for (int i = 0; i < kIndexerDim / kWarpSize; ++i) row[i] = x[lane * (kIndexerDim / kWarpSize) + i];
    store_row_128(a.cache, a.rows.row(slot), row, lane);
  } else {
    uint8_t* const out = a.rows.row(slot).data;
    for (int32_t i = lane; i < a.dim; i += kWarpSize) store_u16(out + 2 * i, to_bf16(x[i]).bits);
  }
}

void run(const IndexerKeyInsertParams& p, const ExecutionContext& context) {
  const int64_t num_slots = p.slot_mapping.shape[0];
  if (num_slots == 0) return;
  const int64_t dim = p.k.shape[1], rotary = p.cos_sin.present() ? p.cos_sin.shape[1] : 0;
  const KeyArgs args{.k = p.k.ptr<Bf16>(),
                     .k_stride = p.k.stride[0],
                     .dim = static_cast<int32_t>(dim),
                     .weight = p.weight.ptr<float>(),
                     .bias = p.bias.ptr<float>(),
                     .eps = p.eps,
                     .positions = p.positions.ptr<int64_t>(),
                     .cos_sin = p.cos_sin.ptr<float>(),
                     .cos_sin_stride = p.cos_sin.stride[0],
                     .table_rows = p.cos_sin.present() ? p.cos_sin.shape[0] : 0,
                     .rotary = static_cast<int32_t>(rotary),
                     .first_rotary = static_cast<int32_t>(p.rope_slice == RopeSlice::last ? dim - rotary : 0),
                     .pairing = p.pairing,
                     .hadamard = p.hadamard,
                     .slot_mapping = p.slot_mapping.ptr<int64_t>(),
                     .num_slots = num_slots,
                     .cache = p.cache,
                     .rows = CacheRows(p.cache),
                     .simple_rows = rows_of_words(p.cache)};
  const bool aligned = rows_aligned(p.k) && rows_aligned(p.weight) && rows_aligned(p.bias) && (rotary == 0 || rows_aligned(p.cos_sin));
  if (dim == kIndexerDim && rotary == kKeyRotary && aligned) {
    const auto kernel = p.pairing == RopePairing::interleaved ? indexer_key_insert_128_kernel<RopePairing::interleaved>
                                                              : indexer_key_insert_128_kernel<RopePairing::half_split>;
    constexpr int kThreads = kWarps * kWarpSize;
    const unsigned blocks = blocks_for(num_slots, kThreads / kRowLanes);
    const size_t even = even_shared_bytes(blocks, kThreads, capabilities(context.device));
    return launch_early("indexer_key_insert", kernel, {.grid = blocks, .block = kThreads, .shared_bytes = even}, context, args);
  }
  const LaunchShape shape{blocks_for(num_slots, kWarps), kWarps * kWarpSize, sizeof(float) * kWarps * static_cast<size_t>(dim)};
  launch_early("indexer_key_insert", indexer_key_insert_kernel, shape, context, args);
}

}  // namespace

Implementation<IndexerKeyInsertParams> indexer_key_insert_smxx() { return smxx_implementation<IndexerKeyInsertParams>({.run = run}); }

}  // namespace strata::cuda
