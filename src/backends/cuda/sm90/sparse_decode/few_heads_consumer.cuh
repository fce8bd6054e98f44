// The consumers of the decode kernel for few heads. A warpgroup takes a tile: each warp the logits of 16 rows, then 128 value lanes of
// all 64.
//
// Cache rows (logits) and value lanes (values) are M of mma.m16n8k16, heads are N, and both products build A from the raw bytes: the order
// of the contracted lanes or rows is free as long as B has the same, so that a thread reads 8 or 16 consecutive codes.
//   logits  row g (lane / 4) of the warp's 16, and row g + 8; 16 codes of each block, at 16 q (q = lane % 4), are four steps
//   values  lanes 8 g .. 8 g + 7 of a block; rows 16 q .. 16 q + 15, of which i and i + 8 are a pair of one register
#pragma once

#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/mma_f16.cuh"
#include "backends/cuda/sm90/sparse_decode/epilogue.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads_shared.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Named barriers: of all consumers, of one group.
constexpr uint32_t kAllConsumers = 1, kGroupBarrier = 2;

// A thread's place in its warp: g = lane / 4, q = lane % 4.
struct Lane {
  int g, q;
  __device__ __forceinline__ Lane() : g(threadIdx.x % 32 / 4), q(threadIdx.x % 4) {}
  // What follows from it is computed again instead of being kept through a loop.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(g), "+r"(q)); }
};

// A thread's heads: head_of(0 .. kColumns - 1).
template <class Shared>
inline constexpr int kColumns = Shared::kHeads / 4;
__device__ __forceinline__ int head_of(int column, int q = threadIdx.x % 4) { return column / 2 * 8 + q * 2 + column % 2; }

// s[h][2 r + i]: row g + 8 r of the warp, head_of(2 h + i).
template <class Shared>
using Logits = float[Shared::kHeadTiles][4];
// sums[b][j][h][2 r + i]: value lane 64 * block_of(group, warp, b) + 8 g + 2 j + r of head_of(2 h + i).
template <class Shared>
using Sums = float[2][4][Shared::kHeadTiles][4];
// The first of a warp's two blocks of value lanes is the one that its group will store.
__device__ __forceinline__ int block_of(int group, int warp, int b) { return 2 * warp + (b ^ group); }

// Place of the first of a warp's row pairs: with the rows of odd warps exchanged in twos, the rows that a quarter of a warp reads together
// are odd and even ones both in logits (neighbours) and in values (one of each warp).
__device__ __forceinline__ int row_of(int warp, int index) { return 16 * warp + (index ^ (warp & 1)); }

// A weight times its value scale is at most 2^(kMaxLag + kScaleRoom) = 2^14, fits fp16, and so does a mean of values.
constexpr int kScaleRoom = 6, kExponentBias = 127 + kScaleRoom;

// NaN from the byte of NaN, which makes an infinity here.
__device__ __forceinline__ float power_of(uint32_t scale_byte) {
  const float power = __uint_as_float(scale_byte << 23);
  return fmaf(power, 0.0f, power);
}

// The scales of a thread's two rows. Each is a power of two, as its exponent byte, and V3.2's are times `odd`, which is one in most caches.
template <class Shared>
struct RowScales {
  uint2 bytes[2];    // V4: of the eight blocks, the last one that of the rotated lanes as values
  uint4 fp32[2];     // V3.2: of the four tiles
  bool odd = false;  // V3.2, any of the warp's

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
  // Of blocks 2 q and 2 q + 1.
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

constexpr uint32_t kOddBits = 0x807FFFFFu;  // sign and fraction of an fp32 scale
__device__ __forceinline__ float odd_factor(uint32_t scale) { return __uint_as_float((scale & kOddBits) | 0x3F800000u); }
// Codes times a factor that is no power of two, rounded to bf16, as MLA 9.1 has it: fp16 holds that exactly.
__device__ __forceinline__ uint32_t rounded(uint32_t codes_f16x2, float low, float high) {
  const float2 codes = __half22float2(as_half2(codes_f16x2));
  return bf16x2_to_f16x2(ptx::cvt_bf16x2(codes.x * low, codes.y * high), 1.0f);
}

// Two steps of 16 lanes: eight fp16 lanes of each of the thread's rows, and of the heads.
template <class Shared>
__device__ __forceinline__ void multiply(Logits<Shared>& s, uint4 row, uint4 eighth, const uint4 (&q)[Shared::kHeadTiles]) {
  const uint32_t first[4] = {row.x, eighth.x, row.y, eighth.y}, second[4] = {row.z, eighth.z, row.w, eighth.w};
#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) ptx::mma_m16n8k16_f16(s[h], first, q[h].x, q[h].y);
#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) ptx::mma_m16n8k16_f16(s[h], second, q[h].z, q[h].w);
}

template <class Shared>
__device__ __forceinline__ void clear(Logits<Shared>& s) {
#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) s[h][0] = s[h][1] = s[h][2] = s[h][3] = 0.0f;
}
// s += the logits of a block times its scales.
template <class Shared>
__device__ __forceinline__ void add_scaled(Logits<Shared>& s, const Logits<Shared>& of_block, float scale, float of_eighth) {
#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) {
    s[h][0] = fmaf(scale, of_block[h][0], s[h][0]), s[h][1] = fmaf(scale, of_block[h][1], s[h][1]);
    s[h][2] = fmaf(of_eighth, of_block[h][2], s[h][2]), s[h][3] = fmaf(of_eighth, of_block[h][3], s[h][3]);
  }
}

// A pair of steps of the heads' queries.
template <class Shared>
__device__ __forceinline__ void load_heads(const Shared& shared, int pair, Lane at, uint4 (&v)[Shared::kHeadTiles]) {
#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) v[h] = shared.q[pair][h][4 * at.g + at.q];
}

// s += the logits of the blocks of codes; `quarter`: the thread's first sixteen.
template <bool kOdd, class Shared>
__device__ __forceinline__ void add_codes(const Shared& shared, const uint8_t* quarter, Lane at, const RowScales<Shared>& scales,
                                          Logits<Shared>& s) {
  constexpr int kBlocksTogether = Shared::kHeadTiles > 2 ? 2 : Shared::kCodeBlocks;  // 32 heads leave few registers
#pragma unroll kBlocksTogether
  for (int block = 0; block < Shared::kCodeBlocks; ++block) {
    const uint4 codes[2] = {*reinterpret_cast<const uint4*>(quarter + 64 * block),
                            *reinterpret_cast<const uint4*>(quarter + 8 * Shared::kPitch + 64 * block)};
    Logits<Shared> of_block;
    clear<Shared>(of_block);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint4 eight[2], of_heads[Shared::kHeadTiles];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint2 first = ptx::cvt_f16x4_e4m3x4(i == 0 ? codes[r].x : codes[r].z),
                    second = ptx::cvt_f16x4_e4m3x4(i == 0 ? codes[r].y : codes[r].w);
        eight[r] = {first.x, first.y, second.x, second.y};
        if constexpr (kOdd) {
          const float odd = odd_factor(scales.tile(r, block));
          eight[r] = {rounded(first.x, odd, odd), rounded(first.y, odd, odd), rounded(second.x, odd, odd), rounded(second.y, odd, odd)};
        }
      }
      load_heads<Shared>(shared, 2 * block + i, at, of_heads);
      multiply<Shared>(of_block, eight[0], eight[1], of_heads);
    }
    add_scaled<Shared>(s, of_block, power_of(scales.byte(0, block)), power_of(scales.byte(1, block)));
  }
}

// Logits of the warp's rows, without the heads' factors.
template <class Shared>
__device__ __forceinline__ void logits(Shared& shared, uint32_t stage, int warp, Lane at, RowScales<Shared>& scales, Logits<Shared>& s) {
  const int g = at.g, q = at.q, row = row_of(warp, g), swap = bank_swap(row);
  constexpr int kEightRows = 8 * Shared::kPitch, kFirstRotated = (Shared::kV4 ? kV4NopeDim : kMlaRopeOffset) / 16;
  uint8_t* const keys = shared.rows[stage][row];
  uint8_t* const quarter = keys + ((q ^ swap) << 4);  // of each four units; V4's rotated lanes begin with four as well
  uint8_t* const rotated_quarter = Shared::kV4 ? quarter + 16 * kFirstRotated : nullptr;
  const auto unit = [](uint8_t* first, int r, int offset) -> uint4& { return *reinterpret_cast<uint4*>(first + r * kEightRows + offset); };
  const auto rotated_unit = [&](int r, int i) -> uint4& {
    if constexpr (Shared::kV4) return unit(rotated_quarter, r, 64 * i);
    return unit(keys, r, ((kFirstRotated + 4 * i + q) ^ swap) << 4);
  };
  clear<Shared>(s);

  // Rotated lanes become fp16 of which the largest of a row is in [2^7, 2^8), as codes are, with a scale of their own. V4: as values too,
  // so in place.
  uint4 rotated[2][2];
  uint32_t rotated_byte[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    constexpr uint32_t kCodeExponent = 7, kLargestByte = 248;
#pragma unroll
    for (int i = 0; i < 2; ++i) rotated[r][i] = rotated_unit(r, i);
    uint32_t largest = max(max_bf16_bits(rotated[r][0]), max_bf16_bits(rotated[r][1]));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
    rotated_byte[r] = min(max(largest >> 7, kCodeExponent + 1) - kCodeExponent, kLargestByte);
    const float factor = __uint_as_float((254 - rotated_byte[r]) << 23);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rotated[r][i] = bf16_to_f16(rotated[r][i], factor);
      if constexpr (Shared::kV4) rotated_unit(r, i) = rotated[r][i];
    }
    if constexpr (Shared::kV4) {
      scales.bytes[r] = *reinterpret_cast<const uint2*>(&shared.scales[stage][row + 8 * r]);
      scales.bytes[r].y = scales.bytes[r].y & 0x00FFFFFFu | rotated_byte[r] << 24;
    } else {
      scales.fp32[r] = unit(keys, r, (kMlaScaleOffset / 16 ^ swap) << 4);
      scales.odd |= ((scales.fp32[r].x | scales.fp32[r].y | scales.fp32[r].z | scales.fp32[r].w) & kOddBits) != 0;
    }
  }
  if constexpr (!Shared::kV4) scales.odd = __any_sync(~0u, scales.odd);

  Logits<Shared> of_rotated;
  clear<Shared>(of_rotated);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint4 of_heads[Shared::kHeadTiles];
    load_heads<Shared>(shared, 2 * Shared::kCodeBlocks + i, at, of_heads);
    multiply<Shared>(of_rotated, rotated[0][i], rotated[1][i], of_heads);
  }
  add_scaled<Shared>(s, of_rotated, power_of(rotated_byte[0]), power_of(rotated_byte[1]));
  if (!Shared::kV4 && scales.odd) {
    add_codes<true>(shared, quarter, at, scales, s);
  } else {
    add_codes<false>(shared, quarter, at, scales, s);
  }
}

// The largest over the eight lanes with the same heads.
__device__ __forceinline__ float rows_max(float v) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, lanes));
  return v;
}

constexpr uint32_t kOddFlag = 1u << 16;

// Logits to weights and scales of values, both for all warps of the group. `turn`: even and odd in turn. `alpha`: what earlier sums of
// values are to be multiplied by; they are relative to 2^(top_scale - kExponentBias). Returns whether a row of the tile has an odd scale.
template <class Shared>
__device__ __forceinline__ bool softmax(Shared& shared, uint32_t stage, uint32_t turn, int group, int warp, Lane at,
                                        const RowScales<Shared>& scales, Logits<Shared>& s, int32_t& top_scale,
                                        float (&alpha)[kColumns<Shared>]) {
  const int g = at.g, q = at.q, lane = 4 * g + q;
  const uint32_t attended = shared.attended[stage][warp] >> (g ^ (warp & 1));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if ((attended >> (8 * r) & 1u) == 0) {
#pragma unroll
      for (int h = 0; h < Shared::kHeadTiles; ++h) s[h][2 * r] = s[h][2 * r + 1] = -INFINITY;
    }
  }
#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) {
    const float2 largest = {rows_max(fmaxf(s[h][0], s[h][2])), rows_max(fmaxf(s[h][1], s[h][3]))};
    if (lane < 4) *reinterpret_cast<float2*>(&shared.columns[group][warp][head_of(2 * h, q)]) = largest;
  }
  const uint2 first = scales.own_bytes(0, q), second = scales.own_bytes(1, q);
  const uint32_t own_top = __reduce_max_sync(~0u, max(max(first.x, first.y), max(second.x, second.y)));
  if (lane == 0) shared.tops[group][warp] = own_top | (scales.odd ? kOddFlag : 0);
  ptx::barrier_sync(kGroupBarrier + group, kWarpgroup);

  uint32_t tops = 0, odd = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t top = shared.tops[group][w];
    tops = max(tops, top & (kOddFlag - 1)), odd |= top & kOddFlag;
  }
  float lift = 1.0f;
  constexpr int kHeadroom = 2;  // so that it rises seldom
  if (static_cast<int32_t>(tops) > top_scale) {
    const int32_t raised = static_cast<int32_t>(tops) + kHeadroom;
    lift = ptx::ex2(static_cast<float>(top_scale - raised));
    top_scale = raised;
  }
  const auto value_scale = [&](uint32_t byte) {
    return __uint_as_float(static_cast<uint32_t>(max(static_cast<int32_t>(byte) - top_scale + kExponentBias, 0)) << 23);
  };
  shared.value_scales[group][2 * q][8 * warp + g] = ptx::cvt_f16x2(value_scale(first.x), value_scale(second.x));
  shared.value_scales[group][2 * q + 1][8 * warp + g] = ptx::cvt_f16x2(value_scale(first.y), value_scale(second.y));

#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) {
    const int head = head_of(2 * h, q);
    const auto two = [head](const float* v) { return *reinterpret_cast<const float2*>(v + head); };
    float2 largest = two(shared.columns[group][0]);
#pragma unroll
    for (int w = 1; w < 4; ++w) {
      const float2 other = two(shared.columns[group][w]);
      largest = {fmaxf(largest.x, other.x), fmaxf(largest.y, other.y)};
    }
    const float2 factor = two(shared.factor);
    float2 subtracted = two(shared.subtracted[group][turn % 2]);
    float2& sum = shared.sums[group][h][32 * warp + lane];
    const auto weigh = [&](int i, float factor, float largest, float& subtracted, float sum) {
      const int c = 2 * h + i;
      float of_sum = 1.0f;
      if (largest > subtracted + kMaxLag) {
        of_sum = ptx::ex2(subtracted - largest);
        subtracted = largest;
      }
      alpha[c] = of_sum * lift;
      const float offset = subtracted == -INFINITY ? 0.0f : -subtracted;
      const float upper = ptx::ex2(fmaf(s[h][i], factor, offset)), lower = ptx::ex2(fmaf(s[h][i + 2], factor, offset));
      shared.p[group][head + i][8 * warp + g] = ptx::cvt_f16x2(upper, lower);
      return fmaf(sum, of_sum, upper + lower);
    };
    largest = {largest.x * factor.x, largest.y * factor.y};
    const float2 before = sum;
    sum = {weigh(0, factor.x, largest.x, subtracted.x, before.x), weigh(1, factor.y, largest.y, subtracted.y, before.y)};
    if (warp == 0 && lane < 4) {
      *reinterpret_cast<float2*>(&shared.subtracted[group][(turn + 1) % 2][head]) = subtracted;
      auto& maximum = *reinterpret_cast<float2*>(&shared.maximum[group][head]);
      maximum = {fmaxf(maximum.x, largest.x), fmaxf(maximum.y, largest.y)};
    }
  }
  ptx::barrier_sync(kGroupBarrier + group, kWarpgroup);
  return odd != 0;
}

template <class Shared>
__device__ __forceinline__ void scale(Sums<Shared>& sums, const float (&by)[kColumns<Shared>]) {
#pragma unroll
  for (int b = 0; b < 2; ++b) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int c = 0; c < kColumns<Shared>; ++c) sums[b][j][c / 2][c % 2] *= by[c], sums[b][j][c / 2][c % 2 + 2] *= by[c];
    }
  }
}

// Eight values of pair i of the thread's rows, one register each.
template <bool kFp16>
struct ValuePairs {
  uint32_t of_lane[8];

  __device__ __forceinline__ ValuePairs(const uint8_t* row, const uint8_t* eighth) {
    if constexpr (kFp16) {
      const uint4 a = *reinterpret_cast<const uint4*>(row), b = *reinterpret_cast<const uint4*>(eighth);
      const uint32_t first[4] = {a.x, a.y, a.z, a.w}, second[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        of_lane[2 * i] = __byte_perm(first[i], second[i], 0x5410);
        of_lane[2 * i + 1] = __byte_perm(first[i], second[i], 0x7632);
      }
    } else {
      const uint2 a = *reinterpret_cast<const uint2*>(row), b = *reinterpret_cast<const uint2*>(eighth);
      const uint32_t first[2] = {a.x, a.y}, second[2] = {b.x, b.y};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 low = ptx::cvt_f16x4_e4m3x4(__byte_perm(first[i], second[i], 0x5140)),
                    high = ptx::cvt_f16x4_e4m3x4(__byte_perm(first[i], second[i], 0x7362));
        of_lane[4 * i] = low.x, of_lane[4 * i + 1] = low.y, of_lane[4 * i + 2] = high.x, of_lane[4 * i + 3] = high.y;
      }
    }
  }
};

// sums of the warp's block `b` += weights * values.
template <bool kFp16, bool kOdd, class Shared>
__device__ __forceinline__ void add_block(Shared& shared, uint32_t stage, int group, int warp, Lane lane, int b, Sums<Shared>& sums) {
  const int g = lane.g, q = lane.q, swap = bank_swap(16 * q);
  const int block = block_of(group, warp, b), at = (kFp16 ? (g ^ swap) * 16 : (g / 2 ^ swap) * 16 + g % 2 * 8) + kChunkLanes * block;
  const uint8_t* const even = shared.rows[stage][row_of(q, 0)] + at;
  const uint8_t* const uneven = shared.rows[stage][row_of(q, 1)] + at;
  const uint4* const scales = reinterpret_cast<const uint4*>(&shared.value_scales[group][block][8 * q]);
  const uint4* const weights = reinterpret_cast<const uint4*>(&shared.p[group][g][8 * q]);
  uint4 p[Shared::kHeadTiles], half_scales;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    constexpr int kEightRows = 8 * Shared::kPitch;
    const int offset = 2 * step * Shared::kPitch;
    ValuePairs<kFp16> first(even + offset, even + offset + kEightRows), second(uneven + offset, uneven + offset + kEightRows);
    if constexpr (kOdd) {
      const auto factor = [&](int index) {
        const uint8_t* const row = shared.rows[stage][row_of(q, index)];
        return odd_factor(*reinterpret_cast<const uint32_t*>(row + ((kMlaScaleOffset / 16 ^ swap) << 4) + 4 * warp));
      };
      const float of_first[2] = {factor(2 * step), factor(2 * step + 8)}, of_second[2] = {factor(2 * step + 1), factor(2 * step + 9)};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        first.of_lane[i] = rounded(first.of_lane[i], of_first[0], of_first[1]);
        second.of_lane[i] = rounded(second.of_lane[i], of_second[0], of_second[1]);
      }
    }
    if (step % 2 == 0) {
      half_scales = scales[step / 2];
#pragma unroll
      for (int h = 0; h < Shared::kHeadTiles; ++h) p[h] = weights[h * 8 * (Shared::kPairPitch / 4) + step / 2];
    }
    const __half2 scale0 = as_half2(step % 2 == 0 ? half_scales.x : half_scales.z),
                  scale1 = as_half2(step % 2 == 0 ? half_scales.y : half_scales.w);
#pragma unroll
    for (int h = 0; h < Shared::kHeadTiles; ++h) {
      const uint32_t p0 = mul_f16x2(step % 2 == 0 ? p[h].x : p[h].z, scale0), p1 = mul_f16x2(step % 2 == 0 ? p[h].y : p[h].w, scale1);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t values[4] = {first.of_lane[2 * j], first.of_lane[2 * j + 1], second.of_lane[2 * j], second.of_lane[2 * j + 1]};
        ptx::mma_m16n8k16_f16(sums[b][j][h], values, p0, p1);
      }
    }
  }
}

// Every kGroups-th of the block's tiles, from tile `group` on. Returns how many.
template <class Shared>
__device__ __forceinline__ uint32_t consume(Shared& shared, int group, int warp, int32_t tiles, int32_t& top_scale, Sums<Shared>& sums) {
  uint32_t turn = 0;
  Lane lane;
#pragma unroll 1
  for (int32_t tile = group; tile < tiles; tile += kGroups, ++turn) {
    const uint32_t stage = tile % Shared::kRing, parity = tile / Shared::kRing & 1u;
    lane.forget();
    Logits<Shared> s;
    RowScales<Shared> scales;
    float alpha[kColumns<Shared>];
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage]), parity);
    logits(shared, stage, warp, lane, scales, s);
    const bool odd = softmax(shared, stage, turn, group, warp, lane, scales, s, top_scale, alpha);
    bool same = true;
#pragma unroll
    for (int c = 0; c < kColumns<Shared>; ++c) same &= alpha[c] == 1.0f;
    if (!__all_sync(~0u, same)) scale<Shared>(sums, alpha);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      if (Shared::kV4 && block_of(group, warp, b) == Shared::kCodeBlocks) {
        add_block<true, false>(shared, stage, group, warp, lane, b, sums);
      } else if (!Shared::kV4 && odd) {
        add_block<false, true>(shared, stage, group, warp, lane, b, sums);
      } else {
        add_block<false, false>(shared, stage, group, warp, lane, b, sums);
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.empty[stage]));
  }
  return turn;
}

}  // namespace strata::cuda::sparse_decode::few_heads
