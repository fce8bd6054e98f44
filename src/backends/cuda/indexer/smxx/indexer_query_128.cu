// The indexer's queries: rotation, Hadamard, quantisation, weights: V4 10.1, MLA 11.2-11.5. Floor: per token and head 256 bytes read and
// 128 (e4m3), 68 (MXFP4) or 256 (bf16) written: 24 us (e4m3) and 20 us (MXFP4) for 4096 tokens of 64 heads on an H200. Reached: 28.9 and
// 26.6 us. The arithmetic is the other limit, so lanes share it evenly.
//
// Eight lanes hold a head (query_lanes.cuh). A warp processes four heads of one token at a time while the next four load, so that angles
// are loaded once.
#include <algorithm>

#include "backends/cuda/device/e2m1.cuh"
#include "backends/cuda/device/hadamard.cuh"
#include "backends/cuda/device/touch.cuh"
#include "backends/cuda/indexer/query_lanes.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/grid.h"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

using namespace indexer_query;

constexpr int kWarps = 4;

// Of the heads of the warp's lanes.
__device__ __forceinline__ void hadamard(uint32_t (&words)[kHalves][kWords], int lane) {
  float x[kHalves][kValues];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    unpack_words(words[half], x[half]);
    butterfly_lanes<kHeadLanes>(x[half], lane);
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const float low = x[0][i], high = x[1][i];
    x[0][i] = (low + high) * hadamard_scale(kDim);
    x[1][i] = (low - high) * hadamard_scale(kDim);
  }
#pragma unroll
  for (int half = 0; half < kHalves; ++half) pack_words(x[half], words[half]);
}

constexpr int kBlockLanes = kMxfp4Block / kValues;
constexpr uint32_t kMxfp4Floor = 0x01C0;  // 6 * 2^-126 in bf16

// The largest magnitude of a block of finite values and the floor, as bits; with NaN or infinity, a number from 0x7F80 on.
__device__ __forceinline__ uint32_t block_amax_bits(const Magnitudes& magnitudes) {
  uint32_t most = magnitudes.most_or_nan();
#pragma unroll
  for (int step = kBlockLanes / 2; step > 0; step /= 2) most = ptx::max_nan_bf16x2(most, __shfl_xor_sync(kAllLanes, most, step));
  return max(max(most & 0xFFFFu, most >> 16), kMxfp4Floor);
}

__device__ __forceinline__ void encode_mxfp4(const uint32_t (&words)[kHalves][kWords], uint32_t (&packed)[kHalves],
                                             int (&exponent)[kHalves]) {
  Magnitudes magnitudes[kHalves] = {Magnitudes(words[0]), Magnitudes(words[1])};
  const uint32_t amax[kHalves] = {block_amax_bits(magnitudes[0]), block_amax_bits(magnitudes[1])};
  const bool finite = max(amax[0], amax[1]) < 0x7F80u;
  if (__all_sync(kAllLanes, finite)) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      // exponent_mxfp4 of bf16 bits, and the bits of a pair of 2^-exponent.
      exponent[half] = static_cast<int>((amax[half] + 0x3Fu) >> 7) - (127 + 2);
      const uint32_t factor = static_cast<uint32_t>(127 - exponent[half]) * 0x00800080u;
#pragma unroll
      for (uint32_t& pair : magnitudes[half].words) pair = ptx::mul_bf16x2(pair, factor);
      packed[half] = pack_e2m1(magnitudes[half].words, words[half], [](uint32_t pair) { return e2m1_magnitudes(pair); });
    }
    return;
  }
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    exponent[half] = exponent_mxfp4(fmaxf(lanes_amax<kBlockLanes>(magnitudes[half].most()), 6 * 0x1p-126f));
    scale(exponent[half], magnitudes[half].words);
    packed[half] = pack_e2m1(magnitudes[half].words, words[half], [](uint32_t pair) { return e2m1_magnitudes_at_most_6(pair); });
  }
}

// A lane's loads of one head after the other, at a stride of kHeads heads. Past the end: zeros.
struct Source {
  const uint8_t* q;
  const uint8_t* weight;
  int64_t step;
  int32_t weight_step;

  __device__ __forceinline__ Source(const IndexerQueryArgs& a, int64_t t, int32_t head, int lane)
      : q(a.q + t * a.token_stride + head * a.head_stride + lane % kHeadLanes * kValues * 2),
        weight(a.weights + t * a.weights_stride + head * (a.bf16_weights ? 2 : 4)),
        step(kHeads * a.head_stride),
        weight_step(kHeads * (a.bf16_weights ? 2 : 4)) {}
};

struct Head {
  uint32_t words[kHalves][kWords];
  uint32_t weight;  // as in memory, in the head's first lane

  __device__ __forceinline__ Head(const IndexerQueryArgs& a, Source& from, bool exists, int lane) {
    uint4 v[kHalves] = {};
    weight = 0;
    if (exists) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) v[half] = *reinterpret_cast<const uint4*>(from.q + half * kHalf * 2);
      if (lane % kHeadLanes == 0) {
        weight = a.bf16_weights ? *reinterpret_cast<const uint16_t*>(from.weight) : *reinterpret_cast<const uint32_t*>(from.weight);
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      words[half][0] = v[half].x, words[half][1] = v[half].y, words[half][2] = v[half].z, words[half][3] = v[half].w;
    }
    from.q += from.step;
    from.weight += from.weight_step;
  }
};

// Where a lane writes.
template <QueryFormat kFormat>
struct Target {
  static constexpr int kRowBytes = kFormat == QueryFormat::e4m3 ? kDim : kFormat == QueryFormat::mxfp4 ? kDim / 2 : 2 * kDim;
  static constexpr int kHalfBytes = kRowBytes / kHalves, kLaneBytes = kHalfBytes / kHeadLanes;
  static constexpr int kScales = kDim / kMxfp4Block;
  uint8_t* out;
  uint8_t* scales;  // MXFP4 only
  float* weight;

  __device__ __forceinline__ Target(const IndexerQueryArgs& a, int64_t t, int32_t head, int lane) {
    const int64_t row = t * a.heads + head;
    out = a.q_out + row * kRowBytes + lane % kHeadLanes * kLaneBytes;
    scales = a.q_scale_out + row * kScales + lane % kHeadLanes / kBlockLanes;
    weight = a.weights_out + row;
  }
  __device__ __forceinline__ void advance() {
    out += kHeads * kRowBytes;
    scales += kHeads * kScales;
    weight += kHeads;
  }

  // Writes the quantised values of a head and returns the scale for its weight. All lanes call it; for heads that do not exist nothing is
  // written.
  __device__ __forceinline__ float store(const IndexerQueryArgs& a, uint32_t (&words)[kHalves][kWords], bool exists, int lane) const {
    if constexpr (kFormat == QueryFormat::bf16) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const uint32_t(&w)[kWords] = words[half];
        if (exists) *reinterpret_cast<uint4*>(out + half * kHalfBytes) = make_uint4(w[0], w[1], w[2], w[3]);
      }
      return 1.0f;
    } else if constexpr (kFormat == QueryFormat::e4m3) {
      uint2 pairs[kHalves];
      const float scale = encode_e4m3(words, a.amax_floor, pairs);
      if (exists) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) *reinterpret_cast<uint2*>(out + half * kHalfBytes) = pairs[half];
      }
      return scale;
    } else {
      uint32_t packed[kHalves];
      int exponent[kHalves];
      encode_mxfp4(words, packed, exponent);
      if (exists) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          *reinterpret_cast<uint32_t*>(out + half * kHalfBytes) = packed[half];
          if (lane % kBlockLanes == 0) scales[half * (kScales / kHalves)] = static_cast<uint8_t>(exponent[half] + 127);
        }
      }
      return 1.0f;
    }
  }
};

// A warp processes `steps` times kHeads heads of one token; `warps_per_token` warps share a token.
template <QueryFormat kFormat, bool kHadamard, RopePairing kPairing>
__global__ void __launch_bounds__(kWarps* kWarpSize, 8)
    indexer_query_128_kernel(const __grid_constant__ IndexerQueryArgs a, int64_t num_tokens, int32_t warps_per_token, int32_t steps) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int64_t t = item / warps_per_token;
  start_early([&] {
    if (t < num_tokens && a.cos_sin != nullptr)
      touch_angles(a.cos_sin, a.cos_sin_stride, a.table_rows, a.rotary, speculative_load(a.positions + t), lane);
  });
  if (t >= num_tokens) return;
  const int32_t begin = static_cast<int32_t>(item - t * warps_per_token) * steps * kHeads, end = min(begin + steps * kHeads, a.heads);
  if (begin >= end) return;
  int32_t head = begin + lane / kHeadLanes;
  Source source(a, t, head, lane);
  Target<kFormat> target(a, t, head, lane);
  Head now(a, source, head < end, lane);
  const bool rotates = a.cos_sin != nullptr, rotates_upper = a.first_rotary != 0;
  LaneRotation<kPairing> rotation{};
  if (rotates) rotation.load(a, t, lane);
#pragma unroll 1
  for (int32_t first = begin; first < end; first += kHeads, head += kHeads) {
    const Head next(a, source, head + kHeads < end, lane);
    if (rotates) rotates_upper ? rotation.rotate(now.words[1]) : rotation.rotate(now.words[0]);
    if constexpr (kHadamard) hadamard(now.words, lane);
    const float scale = target.store(a, now.words, head < end, lane);
    if (lane % kHeadLanes == 0 && head < end) {
      const float weight = __uint_as_float(a.bf16_weights ? now.weight << 16 : now.weight);
      *target.weight = a.scaled_weight(weight, scale);
    }
    target.advance();
    now = next;
  }
}

template <QueryFormat kFormat, bool kHadamard>
void launch(const IndexerQueryArgs& a, int64_t num_tokens, const ExecutionContext& context) {
  // As many warps as the device holds, while there is a step for each.
  constexpr int64_t kWarpsPerSm = 32;
  const int64_t token_steps = ceil_div(a.heads, kHeads);
  const int64_t steps =
      std::clamp<int64_t>(ceil_div(num_tokens * token_steps, kWarpsPerSm * capabilities(context.device).num_sms), 1, token_steps);
  const int64_t warps_per_token = ceil_div(token_steps, steps);
  const auto kernel = a.pairing == RopePairing::interleaved ? indexer_query_128_kernel<kFormat, kHadamard, RopePairing::interleaved>
                                                            : indexer_query_128_kernel<kFormat, kHadamard, RopePairing::half_split>;
  launch_early("indexer_query", kernel, {blocks_for(num_tokens * warps_per_token, kWarps), kWarps * kWarpSize}, context, a, num_tokens,
               static_cast<int32_t>(warps_per_token), static_cast<int32_t>(steps));
}

template <QueryFormat kFormat>
void launch(const IndexerQueryArgs& a, int64_t num_tokens, const ExecutionContext& context) {
  a.hadamard ? launch<kFormat, true>(a, num_tokens, context) : launch<kFormat, false>(a, num_tokens, context);
}

}  // namespace

void launch_indexer_query_128(const IndexerQueryArgs& args, QueryFormat out, int64_t num_tokens, const ExecutionContext& context) {
  switch (out) {
    case QueryFormat::e4m3: return launch<QueryFormat::e4m3>(args, num_tokens, context);
    case QueryFormat::mxfp4: return launch<QueryFormat::mxfp4>(args, num_tokens, context);
    case QueryFormat::bf16: return launch<QueryFormat::bf16>(args, num_tokens, context);
  }
}

}  // namespace strata::cuda
