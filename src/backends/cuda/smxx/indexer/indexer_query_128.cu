// The indexer's queries: rotation, Hadamard, quantisation, weights: V4 10.1, MLA 11.2-11.5. Floor: per token and head 256 bytes read and
// 128 (e4m3), 68 (MXFP4) or 256 (bf16) written. The arithmetic is the other limit: 128 values a head leave some 20 instructions a value.
//
// A half-warp holds a head, 8 neighbouring values per lane as bf16 pairs; a warp does 8 heads of one token, which share the angles. Their
// loads are all under way before the first is used.
#include <algorithm>

#include "backends/cuda/common/check.h"
#include "backends/cuda/common/e2m1.cuh"
#include "backends/cuda/common/hadamard.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/smxx/indexer/indexer_query.cuh"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

constexpr int kDim = 128, kHeadLanes = 16, kValues = 8, kWords = kValues / 2;
constexpr int kWarpHeads = 8, kSteps = kWarpHeads * kHeadLanes / kWarpSize, kMaxWarps = 4;

// What turns a lane's values: out[i] = x[i] * cosine[i] + partner[i] * sine[i], the sign in the sine.
struct LaneRotation {
  bool rotary = false;  // the lane has rotary values
  int partner = 0;      // lane whose values are the partners
  float cosine[kValues], sine[kValues];

  __device__ LaneRotation(const IndexerQueryArgs& a, int64_t t, int lane) {
    const int column = lane % kHeadLanes * kValues - a.first_rotary;
    partner = lane;
    if (a.cos_sin == nullptr || column < 0 || column >= a.rotary) return;
    rotary = true;
    const float* const row = a.cos_sin + a.positions[t] * a.cos_sin_stride;
    const int half = a.rotary / 2;
    const bool second = column >= half;
    if (a.pairing == RopePairing::half_split) partner = second ? lane - half / kValues : lane + half / kValues;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const bool interleaved = a.pairing == RopePairing::interleaved;
      const int pair = interleaved ? (column + i) / 2 : second ? column - half + i : column + i;
      const bool negative = interleaved ? i % 2 == 0 : !second;
      cosine[i] = row[pair];
      sine[i] = negative ? -row[half + pair] : row[half + pair];
    }
  }
};

__device__ __forceinline__ void unpack(const uint32_t (&words)[kWords], float (&x)[kValues]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    x[2 * i] = bf16_low(words[i]);
    x[2 * i + 1] = bf16_high(words[i]);
  }
}
__device__ __forceinline__ void pack(const float (&x)[kValues], uint32_t (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
}

__device__ __forceinline__ void rotate(const IndexerQueryArgs& a, const LaneRotation& r, uint32_t (&words)[kWords]) {
  uint32_t partner_words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    partner_words[i] =
        a.pairing == RopePairing::interleaved ? __byte_perm(words[i], 0, 0x1032) : __shfl_sync(kAllLanes, words[i], r.partner);
  }
  if (!r.rotary) return;
  float x[kValues], partner[kValues];
  unpack(words, x);
  unpack(partner_words, partner);
#pragma unroll
  for (int i = 0; i < kValues; ++i) x[i] = fmaf(x[i], r.cosine[i], partner[i] * r.sine[i]);
  pack(x, words);
}

// Largest magnitude over kLanes lanes; NaN does not count.
template <int kLanes>
__device__ __forceinline__ float amax(const uint32_t (&words)[kWords]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) most = ptx::max_bf16x2(most, words[i] & 0x7FFF7FFFu);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) most = ptx::max_bf16x2(most, __shfl_xor_sync(kAllLanes, most, step));
  return fmaxf(bf16_low(most), bf16_high(most));
}

// Writes the lane's codes of vector number `head` and returns the scale for its weight. All lanes call it; those that are not `active`
// write nothing.
template <QueryCodes kCodes>
__device__ __forceinline__ float store_codes(const IndexerQueryArgs& a, int64_t head, bool active, int lane,
                                             const uint32_t (&words)[kWords]) {
  const int column = lane % kHeadLanes * kValues;
  if constexpr (kCodes == QueryCodes::bf16) {
    if (active) store_words(a.q_out + (head * kDim + column) * 2, words);
    return 1.0f;
  }
  float x[kValues];
  unpack(words, x);
  if constexpr (kCodes == QueryCodes::e4m3) {
    const int exponent = e4m3_exponent(fmaxf(amax<kHeadLanes>(words), a.amax_floor));
    const float inverse = pow2(-exponent);
#pragma unroll
    for (int i = 0; i < kValues; ++i) x[i] *= inverse;
    if (active) {
      store_words<2>(a.q_out + head * kDim + column, {pack_e4m3(x[0], x[1], x[2], x[3]), pack_e4m3(x[4], x[5], x[6], x[7])});
    }
    return to_float(to_e8m0(exponent));
  }
  constexpr int kBlockLanes = kMxfp4Block / kValues;
  int exponent = ceil_log2(fmaxf(amax<kBlockLanes>(words), 6 * 0x1p-126f) / 6.0f);
  if (exponent > 127) exponent = 127;
  const float inverse = pow2(-exponent);
#pragma unroll
  for (int i = 0; i < kValues; ++i) x[i] *= inverse;
  if (active) {
    store_words<1>(a.q_out + (head * kDim + column) / 2, {pack_e2m1(x)});
    if (lane % kBlockLanes == 0) a.q_scale_out[head * (kDim / kMxfp4Block) + column / kMxfp4Block] = to_e8m0(exponent).bits;
  }
  return 1.0f;
}

template <QueryCodes kCodes>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize) indexer_query_128_kernel(const __grid_constant__ IndexerQueryArgs a) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize), warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int64_t t = blockIdx.x;
  const int32_t first_head = (static_cast<int32_t>(blockIdx.y) * warps + static_cast<int32_t>(threadIdx.x) / kWarpSize) * kWarpHeads;
  if (first_head >= a.heads) return;
  const int32_t lane_head = first_head + lane / kHeadLanes;  // of the first step
  const uint8_t* const row = a.q + t * a.token_stride + lane % kHeadLanes * kValues * 2;

  uint32_t words[kSteps][kWords] = {};
  if (a.aligned) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int32_t head = lane_head + 2 * step;
      if (head >= a.heads) continue;
      const uint4 v = *reinterpret_cast<const uint4*>(row + head * a.head_stride);
      words[step][0] = v.x, words[step][1] = v.y, words[step][2] = v.z, words[step][3] = v.w;
    }
  } else {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int32_t head = lane_head + 2 * step;
      if (head < a.heads) load_words(row + head * a.head_stride, words[step]);
    }
  }
  const bool has_weight = lane < kWarpHeads && first_head + lane < a.heads;
  const float weight = has_weight ? a.weight(t, first_head + lane) : 0.0f;
  const LaneRotation rotation(a, t, lane);

  float weight_scale = 1.0f;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (a.cos_sin != nullptr) rotate(a, rotation, words[step]);
    if (a.hadamard) {
      float x[kValues];
      unpack(words[step], x);
      hadamard_lanes<kHeadLanes>(x, lane);
      pack(x, words[step]);
    }
    const int32_t head = lane_head + 2 * step;
    const float q_scale = store_codes<kCodes>(a, t * a.heads + head, head < a.heads, lane, words[step]);
    // Lane i has the weight of the warp's head i: step i / 2, half i % 2 of the warp.
    const float head_scale = __shfl_sync(kAllLanes, q_scale, lane % 2 * kHeadLanes);
    if (lane / 2 == step) weight_scale = head_scale;
  }
  if (has_weight) a.store_weight(t, first_head + lane, weight, weight_scale);
}

template <QueryCodes kCodes>
void launch(const IndexerQueryArgs& a, int64_t num_tokens, cudaStream_t stream) {
  const int warps = (a.heads + kWarpHeads - 1) / kWarpHeads, block_warps = std::min(warps, kMaxWarps);
  const dim3 grid(static_cast<uint32_t>(num_tokens), static_cast<uint32_t>((warps + block_warps - 1) / block_warps));
  indexer_query_128_kernel<kCodes><<<grid, static_cast<uint32_t>(block_warps * kWarpSize), 0, stream>>>(a);
  check_launch("indexer_query");
}

}  // namespace

void launch_indexer_query_128(const IndexerQueryArgs& args, QueryCodes codes, int64_t num_tokens, cudaStream_t stream) {
  switch (codes) {
    case QueryCodes::e4m3:
      return launch<QueryCodes::e4m3>(args, num_tokens, stream);
    case QueryCodes::mxfp4:
      return launch<QueryCodes::mxfp4>(args, num_tokens, stream);
    case QueryCodes::bf16:
      return launch<QueryCodes::bf16>(args, num_tokens, stream);
  }
}

}  // namespace strata::cuda
