// Logits of the decode kernel for few heads: a warpgroup takes a tile, each warp 16 rows of it.
//
// Cache rows (logits) and value lanes (values) are M of wgmma, heads are N, and both products build A in registers from the raw bytes: the
// order of the contracted lanes or rows is free as long as B has the same, so that a thread reads 8 or 16 consecutive codes.
//   logits  row g (lane / 4) of the warp's 16, and row g + 8; 16 codes of each block, at 16 q (q = lane % 4), are four steps
//   values  lanes 2 g and 2 g + 1 of the warp's 16 of a block (of rotated lanes: g and g + 8); the 16 rows of a warp are a step
#pragma once

#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/wgmma_f16_rs.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads_products.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads_shared.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A thread's place in its warp: g = lane / 4, q = lane % 4.
struct Lane {
  int g, q;
  __device__ __forceinline__ Lane() : g(threadIdx.x % 32 / 4), q(threadIdx.x % 4) {}
  // What follows from it is computed again instead of being kept through a loop, where registers are too few.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(g), "+r"(q)); }
};

// A thread's heads: head_of(0 .. kColumns - 1).
template <class Shared>
inline constexpr int kColumns = Shared::kHeads / 4;
__device__ __forceinline__ int head_of(int column, int q = threadIdx.x % 4) { return column / 2 * 8 + q * 2 + column % 2; }

// s[4 h + 2 r + i]: row g + 8 r of the warp, head_of(2 h + i).
template <class Shared>
using Logits = float[4 * Shared::kHeadTiles];
// A of four steps.
using Steps = uint32_t[4][4];
// A step of the values is a warp's rows, q's first pair of rows q and q + 8, its second of q + 4 and q + 12: of pair g the place among
// those of all steps that the same thread takes.
constexpr int kSecondPair = 4;
__device__ __forceinline__ int pair_of(int warp, int g) { return g % kSecondPair * 8 + 2 * warp + g / kSecondPair; }

// A value times its scale is less than 2^(9 + kScaleRoom) and fits fp16.
constexpr int kScaleRoom = 6, kExponentBias = 127 + kScaleRoom, kSmallestTop = kScaleRoom + 1;

// An infinity from the byte of NaN: a row with one is looked for where it is known that there is one (few_heads_softmax.cuh).
constexpr uint32_t kNanByte = 255;
__device__ __forceinline__ float power_of(uint32_t scale_byte) { return __uint_as_float(scale_byte << 23); }

// The scales of a thread's two rows. Each is a power of two, as its exponent byte, and V3.2's are times `odd`, which is one in most caches.
template <class Shared>
struct RowScales {
  uint2 bytes[2];        // V4: of the seven blocks
  uint4 fp32[2];         // V3.2: of the four tiles
  uint32_t rotated = 0;  // V4: that of the largest of the thread's rotated lanes, as values
  uint2 own[2];          // bytes of blocks 2 q and 2 q + 1 of each row
  uint32_t top;          // the largest byte of the warp's rows
  bool odd = false;      // V3.2, any of the tile's: all warps of a group take the same way, as a product is theirs together

  __device__ __forceinline__ uint32_t byte(int r, int block) const {
    if constexpr (Shared::kV4) {
      return (block < 4 ? bytes[r].x : bytes[r].y) >> (8 * (block % 4)) & 0xFFu;
    } else {
      return tile(r, block) >> 23 & 0xFFu;
    }
  }
  __device__ __forceinline__ uint32_t tile(int r, int block) const {
    const uint32_t low = block < 4 ? fp32[r].x : fp32[r].z, high = block < 4 ? fp32[r].y : fp32[r].w;
    return block % 4 < 2 ? low : high;
  }
  __device__ __forceinline__ void look(int q) {
#pragma unroll
    for (int r = 0; r < 2; ++r) own[r] = own_bytes(r, q);
    top = __reduce_max_sync(~0u, max(max(max(own[0].x, own[0].y), max(own[1].x, own[1].y)), rotated));
  }

 private:
  __device__ __forceinline__ uint2 own_bytes(int r, int q) const {
    if constexpr (Shared::kV4) {
      const uint32_t two = (q < 2 ? bytes[r].x : bytes[r].y) >> (16 * (q % 2));
      return {two & 0xFFu, two >> 8 & 0xFFu};
    } else {
      const uint32_t low = q % 2 == 0 ? fp32[r].x : fp32[r].y, high = q % 2 == 0 ? fp32[r].z : fp32[r].w;
      const uint32_t byte = (q < 2 ? low : high) >> 23 & 0xFFu;
      return {byte, byte};
    }
  }
};

// The larger magnitudes of two bf16 pairs, with any sign.
__device__ __forceinline__ uint32_t larger_bf16x2(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

constexpr uint32_t kOddBits = 0x807FFFFFu;  // sign and fraction of an fp32 scale
__device__ __forceinline__ float odd_factor(uint32_t scale) { return __uint_as_float((scale & kOddBits) | 0x3F800000u); }
// Codes times a factor that is no power of two, rounded to bf16, as MLA 9.1 has it: fp16 holds that exactly.
__device__ __forceinline__ uint32_t rounded(uint32_t codes_f16x2, float low, float high) {
  const float2 codes = __half22float2(as_half2(codes_f16x2));
  return bf16x2_to_f16x2(ptx::cvt_bf16x2(codes.x * low, codes.y * high), 1.0f);
}

// s += the logits of a block times its scales.
template <class Shared>
__device__ __forceinline__ void add_scaled(Logits<Shared>& s, const Logits<Shared>& of_block, float scale, float of_eighth) {
#pragma unroll
  for (int i = 0; i < 4 * Shared::kHeadTiles; ++i) s[i] = fmaf(i % 4 < 2 ? scale : of_eighth, of_block[i], s[i]);
}

// Four steps of a chunk of the heads' queries, which begin at the place of descriptor `queries`.
template <class Shared>
__device__ __forceinline__ void multiply(uint64_t queries, int chunk, const Steps& a, Logits<Shared>& of_chunk) {
  // Added to the low word: a descriptor of each chunk's place would be three instructions more.
  const uint64_t heads = queries >> 32 << 32 | static_cast<uint32_t>(queries) + chunk * (Shared::kHeadBytes / 16);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (chunk == Shared::kCodeBlocks) {
      ptx::wgmma_bf16_rs(of_chunk, a[step], heads + 2 * step, step > 0);
    } else {
      ptx::wgmma_f16_rs(of_chunk, a[step], heads + 2 * step, step > 0);
    }
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void hold(Steps& a) {
#pragma unroll
  for (int step = 0; step < 4; ++step) ptx::wgmma_hold(a[step]);
}

// 16 codes of a block of each of the thread's rows; `quarters`: of each four units of theirs, the thread's.
struct Codes {
  uint4 of_row[2];

  __device__ __forceinline__ void load(uint8_t* const (&quarters)[2], int block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) of_row[r] = *reinterpret_cast<const uint4*>(quarters[r] + kChunkLanes * block);
  }
  template <bool kOdd, class Shared>
  __device__ __forceinline__ void convert(const RowScales<Shared>& scales, int block, Steps& a) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t words[4] = {of_row[r].x, of_row[r].y, of_row[r].z, of_row[r].w};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint2 pairs = ptx::cvt_f16x4_e4m3x4(words[step]);
        a[step][r] = pairs.x, a[step][r + 2] = pairs.y;
        if constexpr (kOdd) {
          const float odd = odd_factor(scales.tile(r, block));
          a[step][r] = rounded(pairs.x, odd, odd), a[step][r + 2] = rounded(pairs.y, odd, odd);
        }
      }
    }
  }
};

// s += the logits of the codes, while those of the rotated lanes are on their way in s. A block is converted while the tensor cores have
// the one before; with many heads there are no registers for more than one block's logits.
template <bool kOdd, class Shared>
__device__ __forceinline__ void add_codes(uint64_t queries, uint8_t* const (&quarters)[2], Codes& codes, const RowScales<Shared>& scales,
                                          Steps& rotated, Logits<Shared>& s) {
  constexpr int kBuffers = Shared::kHeadTiles > 2 ? 1 : 2;
  Steps a[2];
  Logits<Shared> of_block[kBuffers];
  const auto add = [&](int block) {
    if (block < 0) {
      ptx::wgmma_hold(s);
      hold(rotated);
    } else {
      ptx::wgmma_hold(of_block[block % kBuffers]);
      hold(a[block % 2]);
      add_scaled<Shared>(s, of_block[block % kBuffers], power_of(scales.byte(0, block)), power_of(scales.byte(1, block)));
    }
  };
#pragma unroll
  for (int block = 0; block < Shared::kCodeBlocks; ++block) {
    codes.convert<kOdd, Shared>(scales, block, a[block % 2]);
    if (block + 1 < Shared::kCodeBlocks) codes.load(quarters, block + 1);
    if constexpr (kBuffers == 1) {
      ptx::wgmma_wait<0>();
      add(block - 1);
    }
    multiply<Shared>(queries, block, a[block % 2], of_block[block % kBuffers]);
    if constexpr (kBuffers == 2) {
      ptx::wgmma_wait<1>();
      add(block - 1);
    }
  }
  ptx::wgmma_wait<0>();
  add(Shared::kCodeBlocks - 1);
}

// s = the logits of rotated lanes and codes, by products of the warp.
template <bool kOdd, class Shared>
__device__ __forceinline__ void own_logits(const Shared& shared, int lane, uint8_t* const (&quarters)[2], Codes& codes,
                                           const RowScales<Shared>& scales, const Steps& rotated, Logits<Shared>& s) {
  OfHeads<Shared::kHeadTiles> queries;
  queries.load(ptx::shared_address(shared.q[Shared::kCodeBlocks]), lane);
#pragma unroll
  for (float& v : s) v = 0.0f;
#pragma unroll
  for (int step = 0; step < 4; ++step) queries.template add_product<true>(s, rotated[step], step);
#pragma unroll
  for (int block = 0; block < Shared::kCodeBlocks; ++block) {
    Steps a;
    queries.load(ptx::shared_address(shared.q[block]), lane);
    codes.convert<kOdd, Shared>(scales, block, a);
    if (block + 1 < Shared::kCodeBlocks) codes.load(quarters, block + 1);
    Logits<Shared> of_block[2] = {};  // two chains of products, half as long
#pragma unroll
    for (int step = 0; step < 4; ++step) queries.add_product(of_block[step % 2], a[step], step);
#pragma unroll
    for (int i = 0; i < 4 * Shared::kHeadTiles; ++i) of_block[0][i] += of_block[1][i];
    add_scaled<Shared>(s, of_block[0], power_of(scales.byte(0, block)), power_of(scales.byte(1, block)));
  }
}

// Logits of the warp's rows, without the heads' factors.
template <class Shared>
__device__ __forceinline__ void logits(Shared& shared, uint64_t queries, uint32_t stage, int group, int warp, Lane at,
                                       RowScales<Shared>& scales, Logits<Shared>& s) {
  const int g = at.g, q = at.q, row = 16 * warp + g;
  constexpr int kFirstRotated = (Shared::kV4 ? kV4NopeDim : kMlaRopeOffset) / 16;
  uint8_t* const rows[2] = {shared.rows[stage][row], shared.rows[stage][row + 8]};
  const auto unit = [&](int r, int u) { return rows[r] + ((u ^ bank_swap(row + 8 * r)) << 4); };
  uint8_t* const quarters[2] = {unit(0, q), unit(1, q)};
  Steps rotated;
  uint32_t largest = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 lanes = *reinterpret_cast<const uint4*>(unit(r, kFirstRotated + 4 * i + q));
      rotated[2 * i][r] = lanes.x, rotated[2 * i][r + 2] = lanes.y;
      rotated[2 * i + 1][r] = lanes.z, rotated[2 * i + 1][r + 2] = lanes.w;
      largest = larger_bf16x2(larger_bf16x2(largest, larger_bf16x2(lanes.x, lanes.y)), larger_bf16x2(lanes.z, lanes.w));
    }
    if constexpr (Shared::kV4) {
      scales.bytes[r] = *reinterpret_cast<const uint2*>(&shared.scales[stage][row + 8 * r]);
      scales.bytes[r].y &= 0x00FFFFFFu;
    } else {
      scales.fp32[r] = *reinterpret_cast<const uint4*>(unit(r, kMlaScaleOffset / 16));
      scales.odd |= ((scales.fp32[r].x | scales.fp32[r].y | scales.fp32[r].z | scales.fp32[r].w) & kOddBits) != 0;
    }
  }
  if constexpr (Shared::kV4) {
    // As values rotated lanes are of the scale with which the largest would be in [2^7, 2^8), as codes are.
    constexpr uint32_t kCodeExponent = 7, kLargestByte = 248;
    const uint32_t exponent = max(largest << 17, largest << 1 & 0xFFFF0000u) >> 24;
    scales.rotated = min(max(exponent, kCodeExponent + 1) - kCodeExponent, kLargestByte);
  } else {
    scales.odd = ptx::barrier_or(kGroupBarrier + group, kWarpgroup, scales.odd);
  }
  Codes codes;
  codes.load(quarters, 0);
  scales.look(q);
  if constexpr (Shared::kOwnLogits) {
    const int lane = 4 * g + q;
    return !Shared::kV4 && scales.odd ? own_logits<true>(shared, lane, quarters, codes, scales, rotated, s)
                                      : own_logits<false>(shared, lane, quarters, codes, scales, rotated, s);
  }
  multiply<Shared>(queries, Shared::kCodeBlocks, rotated, s);
  if (!Shared::kV4 && scales.odd) {
    add_codes<true, Shared>(queries, quarters, codes, scales, rotated, s);
  } else {
    add_codes<false, Shared>(queries, quarters, codes, scales, rotated, s);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
