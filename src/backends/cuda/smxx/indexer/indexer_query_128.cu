// The indexer's queries: rotation, Hadamard, quantisation, weights: V4 10.1, MLA 11.2-11.5. Floor: per token and head 256 bytes read and
// 128 (e4m3), 68 (MXFP4) or 256 (bf16) written: 24 us (e4m3) and 20 us (MXFP4) for 4096 tokens of 64 heads on an H200, which takes 32.8 and
// 38.1. The arithmetic is the other limit: some 60 to 80 instructions of a warp per head.
//
// A half-warp holds a head, 8 neighbouring values per lane as bf16 pairs; a warp does heads of one token, which share the angles, four at
// a time.
#include <algorithm>

#include "backends/cuda/common/e2m1.cuh"
#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/common/grid.h"
#include "backends/cuda/common/hadamard.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/smxx/indexer/indexer_query.cuh"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

constexpr int kDim = 128, kHeadLanes = 16, kValues = 8, kWords = kValues / 2;
constexpr int kChunkHeads = 4, kSteps = kChunkHeads * kHeadLanes / kWarpSize, kWarps = 4;

// What turns a lane's 8 values: out[i] = x[i] * cosine[i] + partner[i] * sine[i], the sign in the sine.
struct LaneRotation {
  bool rotary = false;  // the lane has rotary values
  int partner = 0;      // half_split: lane whose values are the partners
  float cosine[kValues], sine[kValues];

  __device__ __forceinline__ LaneRotation(const IndexerQueryArgs& a, int64_t t, int lane) {
    const int column = lane % kHeadLanes * kValues - a.first_rotary;
    partner = lane;
    if (column < 0 || column >= a.rotary) return;
    rotary = true;
    const float* const row = a.cos_sin + a.positions[t] * a.cos_sin_stride;
    const int half = a.rotary / 2;
    if (a.pairing == RopePairing::interleaved) {
      const float4 c = *reinterpret_cast<const float4*>(row + column / 2);
      const float4 s = *reinterpret_cast<const float4*>(row + half + column / 2);
      cosine[0] = cosine[1] = c.x, cosine[2] = cosine[3] = c.y, cosine[4] = cosine[5] = c.z, cosine[6] = cosine[7] = c.w;
      sine[1] = s.x, sine[3] = s.y, sine[5] = s.z, sine[7] = s.w;
#pragma unroll
      for (int i = 0; i < kValues; i += 2) sine[i] = -sine[i + 1];
      return;
    }
    const bool second = column >= half;
    partner = second ? lane - half / kValues : lane + half / kValues;
    const float* const pairs = row + (second ? column - half : column);
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      const float4 c = *reinterpret_cast<const float4*>(pairs + i), s = *reinterpret_cast<const float4*>(pairs + half + i);
      cosine[i] = c.x, cosine[i + 1] = c.y, cosine[i + 2] = c.z, cosine[i + 3] = c.w;
      sine[i] = s.x, sine[i + 1] = s.y, sine[i + 2] = s.z, sine[i + 3] = s.w;
    }
    if (second) return;
#pragma unroll
    for (int i = 0; i < kValues; ++i) sine[i] = -sine[i];
  }
};

__device__ __forceinline__ void unpack(const uint32_t (&words)[kWords], float (&x)[kValues]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    x[2 * i] = bf16_low(words[i]);
    x[2 * i + 1] = bf16_high(words[i]);
  }
}
// Results of arithmetic, whose NaN have no sign to keep.
__device__ __forceinline__ void pack(const float (&x)[kValues], uint32_t (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = ptx::cvt_bf16x2(x[2 * i], x[2 * i + 1]);
}

__device__ __forceinline__ void rotate(const LaneRotation& r, RopePairing pairing, uint32_t (&words)[kWords]) {
  float x[kValues], turned[kValues];
  if (pairing == RopePairing::interleaved) {
    if (!r.rotary) return;
    unpack(words, x);
#pragma unroll
    for (int i = 0; i < kValues; ++i) turned[i] = fmaf(x[i], r.cosine[i], x[i ^ 1] * r.sine[i]);
  } else {
    uint32_t partner_words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) partner_words[i] = __shfl_sync(kAllLanes, words[i], r.partner);
    if (!r.rotary) return;
    float partner[kValues];
    unpack(words, x);
    unpack(partner_words, partner);
#pragma unroll
    for (int i = 0; i < kValues; ++i) turned[i] = fmaf(x[i], r.cosine[i], partner[i] * r.sine[i]);
  }
  pack(turned, words);
}

// Largest magnitude over kLanes lanes; NaN does not count.
template <int kLanes>
__device__ __forceinline__ float amax(const uint32_t (&words)[kWords]) {
  uint32_t most = words[0] & 0x7FFF7FFFu;
#pragma unroll
  for (int i = 1; i < kWords; ++i) most = ptx::max_bf16x2(most, words[i] & 0x7FFF7FFFu);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) most = ptx::max_bf16x2(most, __shfl_xor_sync(kAllLanes, most, step));
  return fmaxf(bf16_low(most), bf16_high(most));
}

// e4m3_exponent and the exponent of quantize_mxfp4_block without their divisions: 448 = 1.75 * 2^8 and 6 = 1.5 * 2^2, so a larger mantissa
// than 1.75 or 1.5 carries into the exponent. For a >= 2^-100, a >= 6 * 2^-126.
__device__ __forceinline__ int exponent_e4m3(float a) {
  return a == INFINITY ? 128 : static_cast<int>((float_bits(a) + 0x1FFFFFu) >> 23) - (127 + 8);
}
__device__ __forceinline__ int exponent_mxfp4(float a) {
  return a == INFINITY ? 127 : static_cast<int>((float_bits(a) + 0x3FFFFFu) >> 23) - (127 + 2);
}

// words * 2^-exponent, of which nothing is lost but what is below the smallest codes.
__device__ __forceinline__ void scale(int exponent, uint32_t (&words)[kWords]) {
  const uint32_t factor = float_bits(pow2(-exponent)) >> 16;
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = ptx::mul_bf16x2(words[i], factor * 0x10001u);
}

// The codes of four scaled values. The conversion drops the sign of a NaN: it comes from `original`.
__device__ __forceinline__ uint32_t e4m3_word(const uint32_t (&scaled)[2], const uint32_t (&original)[2]) {
#if __CUDA_ARCH__ >= 890
  const uint32_t codes = ptx::cvt_e4m3x2(bf16_low(scaled[0]), bf16_high(scaled[0])) |
                         uint32_t{ptx::cvt_e4m3x2(bf16_low(scaled[1]), bf16_high(scaled[1]))} << 16;
  return codes | (__byte_perm(original[0], original[1], 0x7531) & 0x80808080u);
#else
  (void)original;
  return pack_e4m3(bf16_low(scaled[0]), bf16_high(scaled[0]), bf16_low(scaled[1]), bf16_high(scaled[1]));
#endif
}

// Writes the lane's codes of vector number `head` and returns the exponent of the scale for its weight. All lanes call it; those that are
// not `active` write nothing.
template <QueryCodes kCodes>
__device__ __forceinline__ int store_codes(const IndexerQueryArgs& a, int64_t head, bool active, int lane, uint32_t (&words)[kWords]) {
  const int column = lane % kHeadLanes * kValues;
  if constexpr (kCodes == QueryCodes::bf16) {
    if (active) *reinterpret_cast<uint4*>(a.q_out + (head * kDim + column) * 2) = make_uint4(words[0], words[1], words[2], words[3]);
    return 0;
  } else if constexpr (kCodes == QueryCodes::e4m3) {
    const int exponent = exponent_e4m3(fmaxf(amax<kHeadLanes>(words), a.amax_floor));
    const uint32_t low[2] = {words[0], words[1]}, high[2] = {words[2], words[3]};
    scale(exponent, words);
    const uint2 codes = make_uint2(e4m3_word({words[0], words[1]}, low), e4m3_word({words[2], words[3]}, high));
    if (active) *reinterpret_cast<uint2*>(a.q_out + head * kDim + column) = codes;
    return exponent;
  } else {
    constexpr int kBlockLanes = kMxfp4Block / kValues;
    const int exponent = exponent_mxfp4(fmaxf(amax<kBlockLanes>(words), 6 * 0x1p-126f));
    scale(exponent, words);
    const uint32_t codes = pack_e2m1(words);
    if (!active) return 0;
    *reinterpret_cast<uint32_t*>(a.q_out + (head * kDim + column) / 2) = codes;
    if (lane % kBlockLanes == 0) a.q_scale_out[head * (kDim / kMxfp4Block) + column / kMxfp4Block] = to_e8m0(exponent).bits;
    return 0;
  }
}

// Four heads of one token, as they come from memory.
struct Chunk {
  uint32_t words[kSteps][kWords];
  float weight;  // of the chunk's head `lane`, for the first lanes

  __device__ __forceinline__ Chunk(const IndexerQueryArgs& a, int64_t t, int32_t first_head, int lane) {
    const int32_t head = first_head + lane / kHeadLanes;
    const uint8_t* const q = a.q + t * a.token_stride + head * a.head_stride + lane % kHeadLanes * kValues * 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (head + 2 * step < a.heads) v = *reinterpret_cast<const uint4*>(q + 2 * step * a.head_stride);
      words[step][0] = v.x, words[step][1] = v.y, words[step][2] = v.z, words[step][3] = v.w;
    }
    weight = lane < kChunkHeads && first_head + lane < a.heads ? a.weight(t, first_head + lane) : 0.0f;
  }
};

template <QueryCodes kCodes, bool kHadamard>
__device__ __forceinline__ void process(const IndexerQueryArgs& a, int64_t t, int32_t first_head, int lane, const LaneRotation& rotation,
                                        Chunk& chunk) {
  const int32_t lane_head = first_head + lane / kHeadLanes;  // of the first step
  int weight_exponent = 0;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t(&words)[kWords] = chunk.words[step];
    rotate(rotation, a.pairing, words);
    if constexpr (kHadamard) {
      float x[kValues];
      unpack(words, x);
      hadamard_lanes<kHeadLanes>(x, lane);
      pack(x, words);
    }
    const int32_t head = lane_head + 2 * step;
    const int exponent = store_codes<kCodes>(a, t * a.heads + head, head < a.heads, lane, words);
    if constexpr (kCodes == QueryCodes::e4m3) {
      // Lane i has the weight of the chunk's head i: step i / 2, half i % 2 of the warp.
      const int head_exponent = __shfl_sync(kAllLanes, exponent, lane % 2 * kHeadLanes);
      if (lane / 2 == step) weight_exponent = head_exponent;
    }
  }
  if (lane >= kChunkHeads || first_head + lane >= a.heads) return;
  // 128 stands for an infinite amax.
  a.store_weight(t, first_head + lane, chunk.weight, weight_exponent < 128 ? pow2(weight_exponent) : NAN);
}

// A warp does `chunks` chunks of one token, the next one under way while it works on one; `parts` warps share a token.
template <QueryCodes kCodes, bool kHadamard>
__global__ void __launch_bounds__(kWarps* kWarpSize, 8)
    indexer_query_128_kernel(const __grid_constant__ IndexerQueryArgs a, int64_t num_tokens, int32_t parts, int32_t chunks) {
  start_early();
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int64_t t = item / parts;
  if (t >= num_tokens) return;
  int32_t first_head = static_cast<int32_t>(item - t * parts) * chunks * kChunkHeads;
  const int32_t end = min(first_head + chunks * kChunkHeads, a.heads);
  if (first_head >= end) return;
  Chunk chunk(a, t, first_head, lane);
  const LaneRotation rotation(a, t, lane);
#pragma unroll 1
  for (; first_head + kChunkHeads < end; first_head += kChunkHeads) {
    const Chunk next(a, t, first_head + kChunkHeads, lane);
    process<kCodes, kHadamard>(a, t, first_head, lane, rotation, chunk);
    chunk = next;
  }
  process<kCodes, kHadamard>(a, t, first_head, lane, rotation, chunk);
}

template <QueryCodes kCodes>
void launch(const IndexerQueryArgs& a, int64_t num_tokens, const ExecutionContext& context) {
  // As many warps as the device holds, as long as there is a chunk for each.
  constexpr int64_t kWarpsPerSm = 32;
  const int64_t token_chunks = ceil_div(a.heads, kChunkHeads);
  const int64_t chunks =
      std::clamp<int64_t>(ceil_div(num_tokens * token_chunks, kWarpsPerSm * capabilities(context.device).num_sms), 1, token_chunks);
  const int64_t parts = ceil_div(token_chunks, chunks);
  const auto kernel = a.hadamard ? indexer_query_128_kernel<kCodes, true> : indexer_query_128_kernel<kCodes, false>;
  launch_early("indexer_query", kernel, {blocks_for(num_tokens * parts, kWarps), kWarps * kWarpSize}, context, a, num_tokens,
               static_cast<int32_t>(parts), static_cast<int32_t>(chunks));
}

}  // namespace

void launch_indexer_query_128(const IndexerQueryArgs& args, QueryCodes codes, int64_t num_tokens, const ExecutionContext& context) {
  switch (codes) {
    case QueryCodes::e4m3: return launch<QueryCodes::e4m3>(args, num_tokens, context);
    case QueryCodes::mxfp4: return launch<QueryCodes::mxfp4>(args, num_tokens, context);
    case QueryCodes::bf16: return launch<QueryCodes::bf16>(args, num_tokens, context);
  }
}

}  // namespace strata::cuda
