// Logits of the decode kernel for few heads: a warpgroup computes a tile, each warp 16 rows of it.
//
// Cache rows (logits) and value dimensions (values) are M of wgmma, heads are N. Both products build A in registers from the raw bytes. The
// order of the contracted dimensions or rows is free if B has the same, so a thread reads 8 or 16 consecutive e4m3 values.
//   logits  row g (lane / 4) of the warp's 16, and row g + 8; 16 values of each block, at 16 q (q = lane % 4), are four steps
//   values  dimensions 2 g and 2 g + 1 of the warp's 16 of a block (rotary: g and g + 8); the 16 rows of a warp are a step
#pragma once

#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/wgmma_f16_rs.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_products.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_shared.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A thread's position in its warp: g = lane / 4, q = lane % 4.
struct Lane {
  int g, q;
  __device__ __forceinline__ Lane() : g(threadIdx.x % 32 / 4), q(threadIdx.x % 4) {}
  // Makes the compiler recompute what follows from the position, instead of keeping it through a loop, where registers are too few.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(g), "+r"(q)); }
};

// A thread's heads: head_of(0 .. kColumns - 1).
template <class Shared>
inline constexpr int kColumns = Shared::kHeads / 4;
__device__ __forceinline__ int head_of(int column, int q = threadIdx.x % 4) { return column / 2 * 8 + q * 2 + column % 2; }

// s[4 h + 2 r + i]: row g + 8 r of the warp, head_of(2 h + i).
template <class Shared>
using Logits = float[4 * Shared::kHeadTiles];
// A operands of four steps.
using Steps = uint32_t[4][4];
// A step of the values is a warp's rows: q's first pair is rows q and q + 8, its second q + 4 and q + 12. Returns the index of pair g among
// the pairs of all steps that the same thread takes.
constexpr int kSecondPair = 4;
__device__ __forceinline__ int pair_of(int warp, int g) { return g % kSecondPair * 8 + 2 * warp + g / kSecondPair; }

// Scales of values are less than 2^(kScaleRoom + 1) when multiplied: 448 times that fits fp16.
constexpr int kScaleRoom = 6, kExponentBias = 127 + kScaleRoom, kSmallestTop = kScaleRoom + 1;

// The NaN byte gives an infinity. A row with that scale is handled where one is known to exist (few_heads_softmax.cuh).
constexpr uint32_t kNanByte = 255;
__device__ __forceinline__ float power_of(uint32_t scale_byte) { return __uint_as_float(scale_byte << 23); }

// The scales of a thread's two rows.
template <class Shared>
struct RowScales {
  uint2 bytes[2];        // V4: exponent bytes of the seven quantisation blocks
  float4 of_tiles[2];    // V3.2: fp32 scales of the four quantisation blocks of 128
  uint32_t rotated = 0;  // V4: scale byte that fits the largest of the thread's rotary values, as values
  uint2 own[2];          // V4: bytes of blocks 2 q and 2 q + 1 of each row; V3.2: bits of the one scale of both
  uint32_t top;          // the largest exponent byte of the warp's rows

  __device__ __forceinline__ float of(int r, int block) const {
    if constexpr (Shared::kV4) return power_of(exponent(r, block));
    return of_tile(r, block);
  }
  // The scale's exponent byte.
  __device__ __forceinline__ uint32_t exponent(int r, int block) const {
    if constexpr (Shared::kV4) return (block < 4 ? bytes[r].x : bytes[r].y) >> (8 * (block % 4)) & 0xFFu;
    return __float_as_uint(of_tile(r, block)) >> 23 & 0xFFu;
  }
  __device__ __forceinline__ void look(int q) {
#pragma unroll
    for (int r = 0; r < 2; ++r) own[r] = own_scales(r, q);
    uint32_t largest = max(max(max(own[0].x, own[0].y), max(own[1].x, own[1].y)), rotated);
    if constexpr (!Shared::kV4) largest = max(own[0].x << 1, own[1].x << 1) >> 24;
    top = __reduce_max_sync(~0u, largest);
  }

 private:
  __device__ __forceinline__ float of_tile(int r, int block) const {
    const float low = block < 4 ? of_tiles[r].x : of_tiles[r].z, high = block < 4 ? of_tiles[r].y : of_tiles[r].w;
    return block % 4 < 2 ? low : high;
  }
  __device__ __forceinline__ uint2 own_scales(int r, int q) const {
    if constexpr (Shared::kV4) {
      const uint32_t two = (q < 2 ? bytes[r].x : bytes[r].y) >> (16 * (q % 2));
      return {two & 0xFFu, two >> 8 & 0xFFu};
    } else {
      const float low = q % 2 == 0 ? of_tiles[r].x : of_tiles[r].y, high = q % 2 == 0 ? of_tiles[r].z : of_tiles[r].w;
      const uint32_t bits = __float_as_uint(q < 2 ? low : high);
      return {bits, bits};
    }
  }
};

// Per bf16 pair, the larger magnitudes, with any sign.
__device__ __forceinline__ uint32_t larger_bf16x2(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// s += the logits of a quantisation block times its scales.
template <class Shared>
__device__ __forceinline__ void add_scaled(Logits<Shared>& s, const Logits<Shared>& of_block, float scale, float of_eighth) {
#pragma unroll
  for (int i = 0; i < 4 * Shared::kHeadTiles; ++i) s[i] = fmaf(i % 4 < 2 ? scale : of_eighth, of_block[i], s[i]);
}

// Multiplies four steps of a chunk with the heads' queries, which begin at the descriptor `queries`.
template <class Shared>
__device__ __forceinline__ void multiply(uint64_t queries, int chunk, const Steps& a, Logits<Shared>& of_chunk) {
  // Added to the low word: building a descriptor per chunk would be three instructions more.
  const uint64_t heads = queries >> 32 << 32 | static_cast<uint32_t>(queries) + chunk * (Shared::kHeadBytes / 16);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (chunk == Shared::kQuantizedBlocks) {
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

// 16 e4m3 values of a block of each of the thread's rows. `quarters`: the thread's unit of each four units of the rows.
struct QuantizedRows {
  uint4 of_row[2];

  __device__ __forceinline__ void load(uint8_t* const (&quarters)[2], int block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) of_row[r] = *reinterpret_cast<const uint4*>(quarters[r] + kChunkDims * block);
  }
  __device__ __forceinline__ void convert(Steps& a) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t words[4] = {of_row[r].x, of_row[r].y, of_row[r].z, of_row[r].w};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint2 pairs = ptx::cvt_f16x4_e4m3x4(words[step]);
        a[step][r] = pairs.x, a[step][r + 2] = pairs.y;
      }
    }
  }
};

// s += the logits of the e4m3 values, while the product of the rotary dimensions into s is running. A block is converted while the tensor
// cores multiply the previous one. With many heads there are registers for only one block's logits.
template <class Shared>
__device__ __forceinline__ void add_quantized(uint64_t queries, uint8_t* const (&quarters)[2], QuantizedRows& quantized,
                                              const RowScales<Shared>& scales, Steps& rotated, Logits<Shared>& s) {
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
      add_scaled<Shared>(s, of_block[block % kBuffers], scales.of(0, block), scales.of(1, block));
    }
  };
#pragma unroll
  for (int block = 0; block < Shared::kQuantizedBlocks; ++block) {
    quantized.convert(a[block % 2]);
    if (block + 1 < Shared::kQuantizedBlocks) quantized.load(quarters, block + 1);
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
  add(Shared::kQuantizedBlocks - 1);
}

// s = the logits of rotary dimensions and e4m3 values, by mma.sync of the warp.
template <class Shared>
__device__ __forceinline__ void own_logits(const Shared& shared, int lane, uint8_t* const (&quarters)[2], QuantizedRows& quantized,
                                           const RowScales<Shared>& scales, const Steps& rotated, Logits<Shared>& s) {
  OfHeads<Shared::kHeadTiles> queries;
  queries.load(ptx::shared_address(shared.q[Shared::kQuantizedBlocks]), lane);
#pragma unroll
  for (float& v : s) v = 0.0f;
#pragma unroll
  for (int step = 0; step < 4; ++step) queries.template add_product<true>(s, rotated[step], step);
#pragma unroll
  for (int block = 0; block < Shared::kQuantizedBlocks; ++block) {
    Steps a;
    queries.load(ptx::shared_address(shared.q[block]), lane);
    quantized.convert(a);
    if (block + 1 < Shared::kQuantizedBlocks) quantized.load(quarters, block + 1);
    Logits<Shared> of_block[2] = {};  // two chains of products, half as long
#pragma unroll
    for (int step = 0; step < 4; ++step) queries.add_product(of_block[step % 2], a[step], step);
#pragma unroll
    for (int i = 0; i < 4 * Shared::kHeadTiles; ++i) of_block[0][i] += of_block[1][i];
    add_scaled<Shared>(s, of_block[0], scales.of(0, block), scales.of(1, block));
  }
}

// Logits of the warp's rows, without the heads' factors.
template <class Shared>
__device__ __forceinline__ void logits(Shared& shared, uint64_t queries, uint32_t stage, int warp, Lane at, RowScales<Shared>& scales,
                                       Logits<Shared>& s) {
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
      const uint4 packed = *reinterpret_cast<const uint4*>(unit(r, kFirstRotated + 4 * i + q));
      rotated[2 * i][r] = packed.x, rotated[2 * i][r + 2] = packed.y;
      rotated[2 * i + 1][r] = packed.z, rotated[2 * i + 1][r + 2] = packed.w;
      largest = larger_bf16x2(larger_bf16x2(largest, larger_bf16x2(packed.x, packed.y)), larger_bf16x2(packed.z, packed.w));
    }
    if constexpr (Shared::kV4) {
      scales.bytes[r] = *reinterpret_cast<const uint2*>(&shared.scales[stage][row + 8 * r]);
      scales.bytes[r].y &= 0x00FFFFFFu;
    } else {
      scales.of_tiles[r] = *reinterpret_cast<const float4*>(unit(r, kMlaScaleOffset / 16));
    }
  }
  if constexpr (Shared::kV4) {
    // As values, rotary dimensions use the scale with which their largest is in [2^7, 2^8), like e4m3 values.
    constexpr uint32_t kE4m3Exponent = 7, kLargestByte = 248;
    const uint32_t exponent = max(largest << 17, largest << 1 & 0xFFFF0000u) >> 24;
    scales.rotated = min(max(exponent, kE4m3Exponent + 1) - kE4m3Exponent, kLargestByte);
  }
  QuantizedRows quantized;
  quantized.load(quarters, 0);
  scales.look(q);
  if constexpr (Shared::kOwnLogits) {
    own_logits(shared, 4 * g + q, quarters, quantized, scales, rotated, s);
  } else {
    multiply<Shared>(queries, Shared::kQuantizedBlocks, rotated, s);
    add_quantized<Shared>(queries, quarters, quantized, scales, rotated, s);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
