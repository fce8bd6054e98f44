// Operands of the matrix engine: chunks of eight bf16 values of a row, and fragments in local memory. Rows begin at multiples of a chunk's
// size and consist of whole chunks. The weight is the engine's A (a component of a sum is a feature), tokens are its B (one per item).
#pragma once

#include "backends/opencl/device/matrix.h"
#include "backends/opencl/device/reduce.h"
#include "backends/opencl/linear/operands.h"

namespace strata::opencl {

constexpr int kWidth = STRATA_SUBGROUP;  // columns of a fragment of B

template <bool kE4m3>
inline Chunk<kE4m3> load_whole_chunk(const __global uint8_t* from) {
  Chunk<kE4m3> chunk;
  if constexpr (kE4m3) {
    const uint2 words = *(const __global uint2*)from;
    chunk.words[0] = words.x, chunk.words[1] = words.y;
  } else {
    const uint4 words = *(const __global uint4*)from;
    chunk.words[0] = words.x, chunk.words[1] = words.y, chunk.words[2] = words.z, chunk.words[3] = words.w;
  }
  return chunk;
}

// Four e4m3 values times 2^-120 times `factor`, as two bf16 pairs. factor is a power of two, so the result is exact. NaN becomes a number.
inline uint2 widen4(uint32_t bytes, float factor) {
  const uint32_t even = widen_pair(bytes << 8), odd = widen_pair(bytes);
  return (uint2)(bf16_pair(as_float(even << 16) * factor, as_float(odd << 16) * factor),
                 bf16_pair(as_float(even & 0xFFFF0000u) * factor, as_float(odd & 0xFFFF0000u) * factor));
}

// Restores the NaNs of the e4m3 values in the pairs of widen4.
inline uint2 with_nans(uint32_t bytes, uint2 pairs) {
  if ((bytes & 0x7Fu) == 0x7Fu) pairs.x = (pairs.x & 0xFFFF0000u) | 0x7FC0u;
  if ((bytes >> 8 & 0x7Fu) == 0x7Fu) pairs.x = (pairs.x & 0xFFFFu) | 0x7FC00000u;
  if ((bytes >> 16 & 0x7Fu) == 0x7Fu) pairs.y = (pairs.y & 0xFFFF0000u) | 0x7FC0u;
  if ((bytes >> 24 & 0x7Fu) == 0x7Fu) pairs.y = (pairs.y & 0xFFFFu) | 0x7FC00000u;
  return pairs;
}

// A chunk as bf16. e4m3 values are multiplied by 2^-120 * factor.
template <bool kE4m3>
inline uint4 bf16_words(const Chunk<kE4m3>& chunk, float factor) {
  if constexpr (kE4m3) {
    const uint2 low = widen4(chunk.words[0], factor), high = widen4(chunk.words[1], factor);
    return (uint4)(low.x, low.y, high.x, high.y);
  } else {
    return (uint4)(chunk.words[0], chunk.words[1], chunk.words[2], chunk.words[3]);
  }
}
template <bool kE4m3>
inline void keep_if(bool is_there, Chunk<kE4m3>& chunk) {
#pragma unroll
  for (int i = 0; i < (kE4m3 ? 2 : 4); ++i) chunk.words[i] = is_there ? chunk.words[i] : 0;
}
template <bool kE4m3>
inline bool has_nan(const Chunk<kE4m3>& chunk) {
  if constexpr (kE4m3) return has_nan(chunk.words[0]) || has_nan(chunk.words[1]);
  return false;
}
inline uint4 with_nans(const Chunk<true>& chunk, uint4 words) {
  const uint2 low = with_nans(chunk.words[0], words.xy), high = with_nans(chunk.words[1], words.zw);
  return (uint4)(low.x, low.y, high.x, high.y);
}
// A bf16 pair times a power of two.
inline uint32_t scale_pair(uint32_t pair, float scale) {
  return bf16_pair(as_float(pair << 16) * scale, as_float(pair & 0xFFFF0000u) * scale);
}

// A fragment of A in local memory: 64 words in two halves, kHalfWords apart, so that the items of a store use different banks.
constexpr int kHalfWords = 36, kFragmentWords = 2 * kHalfWords;
inline FragmentA load_a_words(const __local uint32_t* from) {
  const int lane = get_sub_group_local_id();
#if STRATA_SUBGROUP == 16
  // An item has one column, as pairs of rows.
  return as_short8(*(const __local uint4*)(from + lane / 8 * kHalfWords + lane % 8 * 4));
#else
  // An item has a pair of columns, four rows in each half.
  const uint4 low = *(const __local uint4*)(from + lane * 4), high = *(const __local uint4*)(from + kHalfWords + lane * 4);
  return (int8)(as_int4(low), as_int4(high));
#endif
}

// The values of a chunk as fp32 bits. e4m3 values are multiplied by 2^-120 * factor; NaN becomes a number.
template <bool kE4m3>
inline void bits_of(const Chunk<kE4m3>& chunk, float factor, uint32_t* bits) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if constexpr (kE4m3) {
      const uint32_t bytes = chunk.words[i / 4], pair = widen_pair(i % 2 == 0 ? bytes << 8 : bytes);
      bits[i] = as_uint(as_float(i % 4 < 2 ? pair << 16 : pair & 0xFFFF0000u) * factor);
    } else {
      bits[i] = i % 2 == 0 ? chunk.words[i / 2] << 16 : chunk.words[i / 2] & 0xFFFF0000u;
    }
  }
}
inline uint32_t pair_of_bits(uint32_t low, uint32_t high) { return low >> 16 | (high & 0xFFFF0000u); }

// Rows of the weight that an item stores together.
constexpr int kStoredRows = kWidth == 16 ? 2 : 1;
// Stores chunk `chunk` of rows [row, row + kStoredRows) to the fragments at `tile`: kSteps per eight rows. row is even if kStoredRows is 2.
template <int kSteps, bool kE4m3>
inline void store_a(__local uint32_t* tile, int row, int chunk, const Chunk<kE4m3>* chunks, float factor) {
  __local uint32_t* fragment = tile + (row / kMatrixRows * kSteps + chunk / 2) * kFragmentWords;
  uint32_t bits[kStoredRows][kChunk];
#pragma unroll
  for (int i = 0; i < kStoredRows; ++i) bits_of(chunks[i], factor, bits[i]);
#if STRATA_SUBGROUP == 16
  __local uint32_t* to = fragment + chunk % 2 * kHalfWords + row % kMatrixRows / 2;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) to[i * 4] = pair_of_bits(bits[0][i], bits[1][i]);
#else
  __local uint32_t* to = fragment + row % kMatrixRows / 4 * kHalfWords + chunk % 2 * 16 + row % 4;
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) to[i * 4] = pair_of_bits(bits[0][2 * i], bits[0][2 * i + 1]);
#endif
}

// Loads B from two vectors of four pairs, `apart` vectors apart.
inline FragmentB load_b_pairs(const __local uint4* from, int apart) {
  const uint4 low = from[0], high = from[apart];
  return (int8)(as_int4(low), as_int4(high));
}

// Offsets of the scale of a weight block: of the block's row, and of its column. All values of a fragment share a scale.
inline uint32_t scale_row_of(const WeightRows& w, uint32_t row) {
  return w.is_e4m3 ? row / (uint32_t)w.block_n * (uint32_t)w.scale_row : 0;
}
inline uint32_t scale_column_of(const WeightRows& w, int k) {
  return w.block_k_bits >= 0 ? (uint32_t)k >> w.block_k_bits : (uint32_t)k / (uint32_t)w.block_k;
}

// As to_bf16.
inline uint8 bf16_bits(float8 v) {
  const uint8 bits = as_uint8(v);
  const uint8 rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  return select(rounded, (bits >> 16) | 0x40u, (bits & 0x7FFFFFFFu) > 0x7F800000u);
}

// The address of a token's results, bf16 or fp32. is_aligned: chunks begin at multiples of half their size in bytes.
struct Results {
  uint64_t address;
  bool is_f32, is_aligned;
};
inline Results results_of(const ProductCall& call, int64_t split, int64_t token, int64_t group) {
  if (call.splits > 1) {
    return {call.sums + (uint64_t)(((split * call.tokens + token) * call.groups + group) * call.n) * 4, true, call.n % 4 == 0};
  }
  return {call.y + (uint64_t)(token * call.y_token + group * call.y_group) * (call.y_is_f32 ? 4 : 2), call.y_is_f32 != 0,
          call.y_is_aligned != 0};
}
// Stores features [feature, feature + 8) of a token.
inline void store_fragment(const Results& to, int feature, int n, FragmentC sums) {
  if (to.is_f32) {
    __global float* y = at<float>(to.address) + feature;
    if (to.is_aligned && feature + kMatrixRows <= n) {
      ((__global float4*)y)[0] = sums.lo;
      ((__global float4*)y)[1] = sums.hi;
    } else {
#pragma unroll
      for (int i = 0; i < kMatrixRows; ++i) {
        if (feature + i < n) y[i] = sums[i];
      }
    }
  } else {
    __global uint16_t* y = at<uint16_t>(to.address) + feature;
    const uint8 bits = bf16_bits(sums);
    if (to.is_aligned && feature + kMatrixRows <= n) {
      const uint4 words = bits.even | bits.odd << 16;
      ((__global uint2*)y)[0] = words.lo;
      ((__global uint2*)y)[1] = words.hi;
    } else {
#pragma unroll
      for (int i = 0; i < kMatrixRows; ++i) {
        if (feature + i < n) y[i] = (uint16_t)bits[i];
      }
    }
  }
}

}  // namespace strata::opencl
