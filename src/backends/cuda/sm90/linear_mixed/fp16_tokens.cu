// y = x W^T for up to four tokens of bf16 and a weight of e4m3 codes: both become fp16, which has every code as it is and every token
// under a power of two.
//
// Floor: weight bytes / memory bandwidth, as of kernel.cu. There a CTA takes 0.3 us for a block of 16 KB, which is 51 GB/s an SM: what lies
// in the ring when the tokens come takes longer to multiply than the memory takes for the rest. Here a warp needs 148 instructions for 32
// features and 128 channels, where that one needs 206 for 16, and a CTA 0.17 us for 16 KB, near what 64 conversions of a warp take. Reached
// on an H200: see docs/kernels/20261123-mixed-linear.md.
//
// Design: as kernel.cu, with mma instead of wgmma: a code pair becomes an operand by one instruction (`cvt`), which goes to fp16 only. So
// tokens are converted too, by all threads when the kernel in front has ended, each block of 128 channels under the power of two that
// brings its largest value below 2^15: values down to 2^-32 of that are exact. They stay in shared memory as the lanes of mma read them,
// and the ring has nothing but codes. A warp has 32 features, such that it reads tokens half as often. What a block's products add up to is
// multiplied by both scales in fp32.
#include "backends/cuda/common/pack.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/mma_f16.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/sm90/linear/finish_tile.cuh"
#include "backends/cuda/sm90/linear/own_tile.cuh"
#include "backends/cuda/sm90/linear/ring_stage.cuh"
#include "backends/cuda/sm90/linear_mixed/config.h"
#include "backends/cuda/sm90/linear_mixed/tile_codes.cuh"

namespace strata::cuda::sm90 {
namespace {

// A token's block, 256 bytes of fp16: 16 channels are an instruction's, of which a lane has 8 bytes, those of two instructions together.
// All tokens' are one beside the other: [blocks][4 pairs of instructions][tokens][4 lanes][2 instructions].
struct TokenBlocks {
  uint32_t at;     // shared address
  int num_tokens;  // of the call
  static constexpr int kPair = 4 * 16;
  __device__ uint32_t block(int i) const { return at + i * num_tokens * (4 * kPair); }
  __device__ uint32_t pair(int i) const { return i * num_tokens * kPair; }
};

// What a lane has of a token's block: channels 16 i + 2 q, + 1, + 8 and + 9, of i = lane / 4 and q = lane % 4.
struct TokenPiece {
  uint32_t low, high;
  __device__ static TokenPiece load(bool wanted, const Bf16* block) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Bf16* const from = block + 16 * (lane / 4) + 2 * (lane % 4);
    return {ptx::ld_if(wanted, from, 0), ptx::ld_if(wanted, from + 8, 0)};
  }
  // As fp16, times the power of two that gives the largest value of the block an exponent of 14; returns what makes up for it. Of what is
  // below 2^-112 another, such that both are normal numbers.
  __device__ float convert(uint32_t& low_values, uint32_t& high_values) const {
    const auto larger = [](uint32_t pair) { return max(pair & 0x7FFF, pair >> 16 & 0x7FFF); };
    const int exponent = max(static_cast<int>(__reduce_max_sync(~0u, max(larger(low), larger(high))) >> 7), 15);
    const float factor = __int_as_float((268 - exponent) << 23);
    low_values = ptx::cvt_f16x2(bf16_low(low) * factor, bf16_high(low) * factor);
    high_values = ptx::cvt_f16x2(bf16_low(high) * factor, bf16_high(high) * factor);
    return __int_as_float((exponent - 14) << 23);
  }
};

// The blocks of a CTA's part of k, of every token, by the warps that multiply. x: of the first block. Two blocks of a warp are under way.
template <int kWarps>
__device__ __forceinline__ void convert_tokens(const MixedArgs& a, const Bf16* x, int count, const TokenBlocks& to, float* scales) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int token = 0; token < a.num_tokens; ++token, x += a.x_stride) {
#pragma unroll 1
    for (int first = warp; first < count; first += 2 * kWarps) {
      TokenPiece pieces[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int block = first + i * kWarps;
        pieces[i] = TokenPiece::load(block < count, x + block * kMixedBlock);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int block = first + i * kWarps;
        if (block >= count) break;
        uint2 values;
        const float scale = pieces[i].convert(values.x, values.y);
        ptx::st_shared(to.block(block) + to.pair(lane / 8) + token * TokenBlocks::kPair + lane % 4 * 16 + lane / 4 % 2 * 8, values);
        if (lane == 0) scales[block * kMixedFp16Columns + token] = scale;
      }
    }
  }
}

// What a lane has of a block's codes of its warp's 16 features.
struct BlockCodes {
  uint4 rows[2][2];  // of 64 channels, of 8 features
  __device__ explicit BlockCodes(const uint4* pieces) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i / 2][i % 2] = pieces[i * 32];
  }
};

// Of 16 channels.
__device__ __forceinline__ void add_products(float (&products)[4], uint32_t low_row, uint32_t high_row, uint32_t b0, uint32_t b1) {
  const uint2 low = ptx::cvt_f16x4_e4m3x4(low_row), high = ptx::cvt_f16x4_e4m3x4(high_row);
  ptx::mma_m16n8k16_f16(products, {low.x, high.x, low.y, high.y}, b0, b1);
}

template <int kParts, bool kCodes>
__global__ void __launch_bounds__(mixed_fp16_tile(kParts).consumers() + 32, 1) fp16_tokens_kernel_of(const __grid_constant__ MixedArgs a) {
  constexpr StreamedTile kTile = mixed_fp16_tile(kParts);
  constexpr int kConsumers = kTile.consumers(), kSlices = kTile.slices, kStage = kParts * kMixedPartBytes, kWarpRows = 32,
                kSlabs = kWarpRows / 16;
  constexpr int kWarpsOfSlice = kParts * kMixedRows / kWarpRows;
  extern __shared__ __align__(1024) uint8_t shared[];
  const MixedFp16Shared at(kTile, a.num_tokens, a.split, a.max_chunk, a.stages);
  const uint32_t ring = ptx::shared_address(shared);
  const uint32_t codes_there = ring + at.barriers, empty = codes_there + a.stages * 8, all_sent = empty + a.stages * 8;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const OwnTile tile(a);

  if (thread == kConsumers) {
#pragma unroll 1
    for (int i = 0; i < a.stages; ++i) {
      ptx::mbarrier_init(codes_there + i * 8, 1);
      ptx::mbarrier_init(empty + i * 8, 32 * kWarpsOfSlice);  // who multiplies it
    }
    ptx::mbarrier_init(all_sent, 1);
    ptx::fence_mbarrier_init();
    expect_sent(a, all_sent, tile);
  }
  load_weight_scales<kParts, kConsumers>(a, tile, ring + at.w_scale);
  __syncthreads();
  if (a.split > 1) ptx::cluster_arrive_relaxed();  // the other CTA may send

  if (thread >= kConsumers) {
    if (lane > 0) return;
    load_codes<kParts>(a, tile, ring, kStage, codes_there, empty);
    return;
  }
  const int warp = thread / 32, slice = warp / kWarpsOfSlice, first_row_of_warp = warp % kWarpsOfSlice * kWarpRows;
  const TokenBlocks tokens{ring + at.tokens, a.num_tokens};
  float* const x_scales = reinterpret_cast<float*>(shared + at.x_scale);
  const float* const w_scales = reinterpret_cast<const float*>(shared + at.w_scale) + first_row_of_warp / kMixedRows * a.max_chunk;
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  convert_tokens<kConsumers / 32>(a, static_cast<const Bf16*>(a.x) + tile.group * a.x_group + tile.first_block * kMixedBlock, tile.count,
                                  tokens, x_scales);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::barrier_sync(1, kConsumers);  // tokens and scales are there
  // Columns behind the last token are that one's again.
  const uint32_t own_token = min(lane / 4, a.num_tokens - 1) * TokenBlocks::kPair + lane % 4 * 16;
  float sums[kSlabs][4] = {};
  RingStage stage{.index = slice};
#pragma unroll 1
  for (int block = slice; block < tile.count; block += kSlices, stage.next(a.stages, kSlices)) {
    ptx::mbarrier_wait(codes_there + stage.index * 8, stage.parity);
    const auto* const pieces = reinterpret_cast<const uint4*>(shared + stage.index * kStage + first_row_of_warp * kMixedBlock) + lane;
    const BlockCodes codes[kSlabs] = {BlockCodes(pieces), BlockCodes(pieces + 128)};
    ptx::mbarrier_arrive(empty + stage.index * 8);  // by every lane: racecheck sees what it orders
    float products[kSlabs][2][4] = {};              // by turns
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 b01 = ptx::ld_shared(tokens.block(block) + tokens.pair(2 * j) + own_token);
      const uint4 b23 = ptx::ld_shared(tokens.block(block) + tokens.pair(2 * j + 1) + own_token);
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        const auto& [low, high] = codes[slab].rows[j];
        add_products(products[slab][0], low.x, high.x, b01.x, b01.y);
        add_products(products[slab][1], low.y, high.y, b01.z, b01.w);
        add_products(products[slab][0], low.z, high.z, b23.x, b23.y);
        add_products(products[slab][1], low.w, high.w, b23.z, b23.w);
      }
    }
    const float2 x_scale = *reinterpret_cast<const float2*>(x_scales + block * kMixedFp16Columns + 2 * (lane % 4));
    const float scales[] = {w_scales[block] * x_scale.x, w_scales[block] * x_scale.y};
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[slab][i] += scales[i % 2] * (products[slab][0][i] + products[slab][1][i]);
    }
  }
  const auto store = [&](float* partial) {
    partial += slice * kMixedFp16Columns * kTile.partial_stride() + first_row_of_warp;
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) store_partial<kTile>(sums[slab], partial + slab * 16);
  };
  end_tile<kTile, kCodes>(store, a, shared, at.sent, all_sent, tile);
}

}  // namespace

const void* mixed_fp16_kernel(int parts, bool codes) {
  return reinterpret_cast<const void*>(codes        ? fp16_tokens_kernel_of<2, true>
                                       : parts == 2 ? fp16_tokens_kernel_of<2, false>
                                                    : fp16_tokens_kernel_of<1, false>);
}

}  // namespace strata::cuda::sm90
