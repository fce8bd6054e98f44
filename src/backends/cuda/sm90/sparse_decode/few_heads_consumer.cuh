// The consumers of the decode kernel for few heads. A warpgroup takes a tile: each warp the logits of 16 rows, then 16 lanes of each block
// of 64 value lanes of all rows.
//
// Cache rows (logits) and value lanes (values) are M of wgmma, heads are N, and both products build A in registers from the raw bytes: the
// order of the contracted lanes or rows is free as long as B has the same, so that a thread reads 8 or 16 consecutive codes.
//   logits  row g (lane / 4) of the warp's 16, and row g + 8; 16 codes of each block, at 16 q (q = lane % 4), are four steps
//   values  lanes 2 g and 2 g + 1 of the warp's 16 of a block (of rotated lanes: g and g + 8); the 16 rows of a warp are a step
#pragma once

#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/ldmatrix.cuh"
#include "backends/cuda/ptx/wgmma_f16_rs.cuh"
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

// s[4 h + 2 r + i]: row g + 8 r of the warp, head_of(2 h + i).
template <class Shared>
using Logits = float[4 * Shared::kHeadTiles];
// sums[b][4 h + 2 r + i]: of head_of(2 h + i), value lane value_lane<Shared>(b, warp, g, r).
template <class Shared>
using Sums = float[kValueDim / kChunkLanes][4 * Shared::kHeadTiles];
template <class Shared>
__device__ __forceinline__ constexpr bool is_rotated(int block) {
  return Shared::kV4 && block == Shared::kCodeBlocks;
}
template <class Shared>
__device__ __forceinline__ int value_lane(int block, int warp, int g, int r) {
  return kChunkLanes * block + 16 * warp + (is_rotated<Shared>(block) ? g + 8 * r : 2 * g + r);
}
// A of four steps.
using Steps = uint32_t[4][4];
// A step of the values is a warp's rows, q's first pair of rows q and q + 8, its second of q + 4 and q + 12: of pair g the place among
// those of all steps that the same thread takes.
constexpr int kSecondPair = 4;
__device__ __forceinline__ int pair_of(int warp, int g) { return g % kSecondPair * 8 + 2 * warp + g / kSecondPair; }

// A value times its scale is less than 2^(9 + kScaleRoom) and fits fp16.
constexpr int kScaleRoom = 6, kExponentBias = 127 + kScaleRoom, kSmallestTop = kScaleRoom + 1;

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
  bool odd = false;  // V3.2, any of the tile's: all warps of a group take the same way, as a product is theirs together

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

// s += the logits of a block times its scales.
template <class Shared>
__device__ __forceinline__ void add_scaled(Logits<Shared>& s, const Logits<Shared>& of_block, float scale, float of_eighth) {
#pragma unroll
  for (int i = 0; i < 4 * Shared::kHeadTiles; ++i) s[i] = fmaf(i % 4 < 2 ? scale : of_eighth, of_block[i], s[i]);
}

// Four steps of a chunk of the heads' queries.
template <class Shared>
__device__ __forceinline__ void multiply(const Shared& shared, int chunk, const Steps& a, Logits<Shared>& of_chunk) {
  const uint64_t heads = ptx::wgmma_descriptor(ptx::shared_address(shared.q[chunk]));
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
__device__ __forceinline__ void add_codes(const Shared& shared, uint8_t* const (&quarters)[2], Codes& codes,
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
    multiply<Shared>(shared, block, a[block % 2], of_block[block % kBuffers]);
    if constexpr (kBuffers == 2) {
      ptx::wgmma_wait<1>();
      add(block - 1);
    }
  }
  ptx::wgmma_wait<0>();
  add(Shared::kCodeBlocks - 1);
}

// Logits of the warp's rows, without the heads' factors.
template <class Shared>
__device__ __forceinline__ void logits(Shared& shared, uint32_t stage, int group, int warp, Lane at, RowScales<Shared>& scales,
                                       Logits<Shared>& s) {
  const int g = at.g, q = at.q, row = 16 * warp + g;
  constexpr int kFirstRotated = (Shared::kV4 ? kV4NopeDim : kMlaRopeOffset) / 16;
  uint8_t* const rows[2] = {shared.rows[stage][row], shared.rows[stage][row + 8]};
  const auto unit = [&](int r, int u) { return rows[r] + ((u ^ bank_swap(row + 8 * r)) << 4); };
  uint8_t* const quarters[2] = {unit(0, q), unit(1, q)};
  Steps rotated;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 lanes = *reinterpret_cast<const uint4*>(unit(r, kFirstRotated + 4 * i + q));
      rotated[2 * i][r] = lanes.x, rotated[2 * i][r + 2] = lanes.y;
      rotated[2 * i + 1][r] = lanes.z, rotated[2 * i + 1][r + 2] = lanes.w;
      largest = max(largest, max_bf16_bits(lanes));
    }
    if constexpr (Shared::kV4) {
      // As values they are of the scale with which the largest of a row would be in [2^7, 2^8), as codes are.
      constexpr uint32_t kCodeExponent = 7, kLargestByte = 248;
      largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
      const uint32_t byte = min(max(largest >> 7, kCodeExponent + 1) - kCodeExponent, kLargestByte);
      scales.bytes[r] = *reinterpret_cast<const uint2*>(&shared.scales[stage][row + 8 * r]);
      scales.bytes[r].y = scales.bytes[r].y & 0x00FFFFFFu | byte << 24;
    } else {
      scales.fp32[r] = *reinterpret_cast<const uint4*>(unit(r, kMlaScaleOffset / 16));
      scales.odd |= ((scales.fp32[r].x | scales.fp32[r].y | scales.fp32[r].z | scales.fp32[r].w) & kOddBits) != 0;
    }
  }
  if constexpr (!Shared::kV4) scales.odd = ptx::barrier_or(kGroupBarrier + group, kWarpgroup, scales.odd);
  Codes codes;
  codes.load(quarters, 0);
  multiply<Shared>(shared, Shared::kCodeBlocks, rotated, s);
  if (!Shared::kV4 && scales.odd) {
    add_codes<true>(shared, quarters, codes, scales, rotated, s);
  } else {
    add_codes<false>(shared, quarters, codes, scales, rotated, s);
  }
}

// Over the eight lanes with the same heads: of column g % kCount in the lanes of g.
template <int kCount, class Combine>
__device__ __forceinline__ float combine_lanes(float (&v)[kCount], int g, Combine&& combine) {
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const bool upper = (g & half) != 0;
      const float other = __shfl_xor_sync(~0u, upper ? v[i] : v[i + half], 4 * half);
      v[i] = combine(upper ? v[i + half] : v[i], other);
    }
  }
#pragma unroll
  for (int lanes = kCount; lanes < 8; lanes *= 2) v[0] = combine(v[0], __shfl_xor_sync(~0u, v[0], 4 * lanes));
  return v[0];
}

// What a group knows of a head, in the lanes of all its warps that have it; the sums of weights are of the thread's rows and columns.
template <class Shared>
struct Softmax {
  float subtracted = -INFINITY, maximum = -INFINITY;  // base 2
  float sums[kColumns<Shared>] = {};
  int32_t top_scale = kSmallestTop;  // sums of values are relative to 2^(top_scale - kExponentBias)

  static __device__ __forceinline__ int own_head(Lane at) { return head_of(at.g % kColumns<Shared>, at.q); }
  static __device__ __forceinline__ float of_column(float own, int column, int q) { return __shfl_sync(~0u, own, 4 * column + q); }
};

// Logits to weights and scales of values, both for all warps of the group; earlier sums of values become relative to the same.
template <class Shared>
__device__ __forceinline__ void weigh(Shared& shared, uint32_t stage, int group, int warp, Lane at, const RowScales<Shared>& scales,
                                      Logits<Shared>& s, Softmax<Shared>& state, Sums<Shared>& sums) {
  const int g = at.g, q = at.q, lane = 4 * g + q, own_head = state.own_head(at);
  const uint32_t attended = shared.attended[stage][warp] >> g;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if ((attended >> (8 * r) & 1u) == 0) {
#pragma unroll
      for (int h = 0; h < Shared::kHeadTiles; ++h) s[4 * h + 2 * r] = s[4 * h + 2 * r + 1] = -INFINITY;
    }
  }
  float largest_of[kColumns<Shared>];
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) largest_of[c] = fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + c % 2 + 2]);
  const float of_warp = combine_lanes(largest_of, g, [](float a, float b) { return fmaxf(a, b); });
  if (g < kColumns<Shared>) shared.columns[group][warp][own_head] = of_warp;
  const uint2 first = scales.own_bytes(0, q), second = scales.own_bytes(1, q);
  const uint32_t own_top = __reduce_max_sync(~0u, max(max(first.x, first.y), max(second.x, second.y)));
  if (lane == 0) shared.tops[group][warp] = own_top;
  ptx::barrier_sync(kGroupBarrier + group, kWarpgroup);

  uint32_t tops = 0;
  float largest = -INFINITY;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    tops = max(tops, shared.tops[group][w]);
    largest = fmaxf(largest, shared.columns[group][w][own_head]);
  }
  float lift = 1.0f;
  constexpr int kHeadroom = 2;  // so that it rises seldom
  if (static_cast<int32_t>(tops) > state.top_scale) {
    const int32_t raised = static_cast<int32_t>(tops) + kHeadroom;
    lift = ptx::ex2(static_cast<float>(state.top_scale - raised));
    state.top_scale = raised;
  }
  const auto value_scale = [&](uint32_t byte) {
    return __uint_as_float(static_cast<uint32_t>(max(static_cast<int32_t>(byte) - state.top_scale + kExponentBias, 0)) << 23);
  };
  uint32_t* const pair_scales = &shared.value_scales[group][2 * q][pair_of(warp, g)];
  pair_scales[0] = ptx::cvt_f16x2(value_scale(first.x), value_scale(second.x));
  pair_scales[Shared::kPairPitch] = ptx::cvt_f16x2(value_scale(first.y), value_scale(second.y));

  largest *= shared.factor[own_head];
  state.maximum = fmaxf(state.maximum, largest);
  float of_sum = 1.0f;
  if (largest > state.subtracted + kMaxLag) {
    of_sum = ptx::ex2(state.subtracted - largest);
    state.subtracted = largest;
  }
  if (__any_sync(~0u, of_sum * lift != 1.0f)) {
#pragma unroll
    for (int c = 0; c < kColumns<Shared>; ++c) {
      const float alpha = state.of_column(of_sum, c, q);
      state.sums[c] *= alpha;
#pragma unroll
      for (int b = 0; b < kValueDim / kChunkLanes; ++b) {
        sums[b][c / 2 * 4 + c % 2] *= alpha * lift, sums[b][c / 2 * 4 + c % 2 + 2] *= alpha * lift;
      }
    }
  }
  const float own_offset = state.subtracted == -INFINITY ? 0.0f : -state.subtracted;
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) {
    const int head = head_of(c, q);
    const float offset = state.of_column(own_offset, c, q), factor = shared.factor[head];
    const float upper = ptx::ex2(fmaf(s[c / 2 * 4 + c % 2], factor, offset)),
                lower = ptx::ex2(fmaf(s[c / 2 * 4 + c % 2 + 2], factor, offset));
    auto* const pair = reinterpret_cast<uint32_t*>(shared.p[group] + unit_offset(head, 2 * warp + g / kSecondPair));
    pair[g % kSecondPair] = ptx::cvt_f16x2(upper, lower);
    state.sums[c] += upper + lower;
  }
  ptx::fence_proxy_async();
  ptx::barrier_sync(kGroupBarrier + group, kWarpgroup);
}

// 16 of the warp's lanes of a block of codes, all rows, as ldmatrix brings them: pairs of lanes of pairs of rows.
struct ValueCodes {
  uint32_t of_steps[2][4];

  template <class Shared>
  __device__ __forceinline__ void load(uint32_t first, int block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::ldmatrix_x4_trans(of_steps[i], first + kChunkLanes * block + 32 * i * Shared::kPitch);
  }
  template <bool kOdd, class Shared>
  __device__ __forceinline__ void convert(const uint8_t* tile, int block, int q, Steps& a) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        constexpr uint32_t kPairsOfRows = 0x3120;
        const uint2 lanes = ptx::cvt_f16x4_e4m3x4(__byte_perm(of_steps[step / 2][step % 2 * 2 + i], 0, kPairsOfRows));
        a[step][2 * i] = lanes.x, a[step][2 * i + 1] = lanes.y;
        if constexpr (kOdd) {
          const auto factor = [&](int in_pair) {
            const int row = 16 * step + q + kSecondPair * i + in_pair;
            const uint8_t* const scales = tile + row * Shared::kPitch + ((kMlaScaleOffset / 16 ^ bank_swap(row)) << 4);
            return odd_factor(*reinterpret_cast<const uint32_t*>(scales + 4 * (block / 2)));
          };
          const float of_first = factor(0), of_eighth = factor(8);
          a[step][2 * i] = rounded(lanes.x, of_first, of_eighth), a[step][2 * i + 1] = rounded(lanes.y, of_first, of_eighth);
        }
      }
    }
  }
};

// sums += weights * values; the tile's place is given back. kOdd: a row has a scale that is no power of two.
template <bool kOdd, class Shared>
__device__ __forceinline__ void add_values(Shared& shared, uint32_t stage, int group, int warp, Lane lane, int32_t top_scale,
                                           Sums<Shared>& sums) {
  constexpr int kBlocks = kValueDim / kChunkLanes;
  const uint64_t weights = ptx::wgmma_descriptor(ptx::shared_address(shared.p[group]));
  // Eight threads' rows are those of a step's first pairs, or of its second: q and q + 8 for each q.
  const int thread = 4 * lane.g + lane.q, in_eight = thread % 8, pair = in_eight / 2 + 8 * (in_eight % 2), eight = thread / 8;
  const uint8_t* const tile = shared.rows[stage][0];
  const int row = 16 * (eight / 2) + kSecondPair * (eight % 2) + pair;
  const uint32_t first = ptx::shared_address(tile) + row * Shared::kPitch + ((warp ^ bank_swap(row)) << 4);
  const uint4* const scales = reinterpret_cast<const uint4*>(&shared.value_scales[group][0][pair_of(0, lane.q)]);
  Steps a[2];
  ValueCodes codes;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    const int block = (i + Shared::kCodeBlocks) % kBlocks;  // V4's rotated lanes come first
    Steps& values = a[i % 2];
    if (i > 1) {
      ptx::wgmma_wait<1>();
      hold(values);
    }
    if (is_rotated<Shared>(block)) {
      const int rotated_row = kSecondPair * (eight / 2) + pair;
      const uint32_t rotated = ptx::shared_address(tile) + rotated_row * Shared::kPitch + kChunkLanes * block +
                               ((2 * warp + eight % 2 ^ bank_swap(rotated_row)) << 4);
      const float scale = pow2(kExponentBias - top_scale);
#pragma unroll
      for (int step = 0; step < 4; ++step) ptx::ldmatrix_x4_trans(values[step], rotated + 16 * step * Shared::kPitch);
      codes.load<Shared>(first, 0);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int j = 0; j < 4; ++j) values[step][j] = bf16x2_to_f16x2(values[step][j], scale);
      }
    } else {
      if (i == 0) codes.load<Shared>(first, block);
      const uint4 two_steps[2] = {scales[block * (Shared::kPairPitch / 4)], scales[block * (Shared::kPairPitch / 4) + 1]};
      codes.convert<kOdd, Shared>(tile, block, lane.q, values);
      if (i + 1 < kBlocks) codes.load<Shared>(first, block + 1);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint4& two = two_steps[step / 2];
        const __half2 of_first = as_half2(step % 2 == 0 ? two.x : two.z), of_second = as_half2(step % 2 == 0 ? two.y : two.w);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[step][j] = mul_f16x2(values[step][j], j < 2 ? of_first : of_second);
      }
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) ptx::wgmma_f16_rs(sums[block], values[step], weights + 2 * step, true);
    ptx::wgmma_commit();
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.empty[stage]));
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) ptx::wgmma_hold(sums[b]);
  hold(a[0]);
  hold(a[1]);
}

// Every Shared::kGroups-th of the block's tiles, from tile `group` on.
template <class Shared>
__device__ __forceinline__ void consume(Shared& shared, int group, int warp, int32_t tiles, Softmax<Shared>& state, Sums<Shared>& sums) {
  Lane lane;
#pragma unroll 1
  for (int32_t tile = group; tile < tiles; tile += Shared::kGroups) {
    const uint32_t stage = tile % Shared::kRing, parity = tile / Shared::kRing & 1u;
    lane.forget();
    Logits<Shared> s;
    RowScales<Shared> scales;
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage]), parity);
    logits(shared, stage, group, warp, lane, scales, s);
    weigh(shared, stage, group, warp, lane, scales, s, state, sums);
    if (!Shared::kV4 && scales.odd) {
      add_values<true>(shared, stage, group, warp, lane, state.top_scale, sums);
    } else {
      add_values<false>(shared, stage, group, warp, lane, state.top_scale, sums);
    }
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
