// Operands of products: chunks of eight consecutive values of a row, as stored and as fp32.
#pragma once

#include "backends/opencl/device/e4m3_words.h"
#include "backends/opencl/device/memory.h"
#include "backends/opencl/linear/call.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/quantize.h"

namespace strata::opencl {

// Eight values as stored.
template <bool kE4m3>
struct Chunk {
  uint32_t words[kE4m3 ? 2 : 4];
};

// Loads eight values; values from `count` on are 0.
template <bool kE4m3>
inline Chunk<kE4m3> load_chunk(const __global uint8_t* from, int count, bool is_aligned) {
  Chunk<kE4m3> chunk;
  if (is_aligned && count >= kChunk) {
    if constexpr (kE4m3) {
      const uint2 words = *(const __global uint2*)from;
      chunk.words[0] = words.x, chunk.words[1] = words.y;
    } else {
      const uint4 words = *(const __global uint4*)from;
      chunk.words[0] = words.x, chunk.words[1] = words.y, chunk.words[2] = words.z, chunk.words[3] = words.w;
    }
    return chunk;
  }
  // Value by value, for unaligned rows and for the end of a row.
  uint64_t low = 0, high = 0;
#pragma nounroll
  for (int i = 0; i < min(kChunk, count); ++i) {
    if constexpr (kE4m3) {
      low |= (uint64_t)from[i] << 8 * i;
    } else {
      const uint64_t bits = ((const __global uint16_t*)from)[i];
      low |= i < 4 ? bits << (16 * i & 63) : 0;
      high |= i < 4 ? 0 : bits << (16 * i & 63);
    }
  }
  chunk.words[0] = (uint32_t)low, chunk.words[1] = (uint32_t)(low >> 32);
  if constexpr (!kE4m3) chunk.words[2] = (uint32_t)high, chunk.words[3] = (uint32_t)(high >> 32);
  return chunk;
}

// The e4m3 values in bytes 1 and 3, times 2^-120, as two bf16 values.
inline uint32_t widen_pair(uint32_t bytes) { return (bytes & 0x80008000u) | (bytes >> 4 & 0x07F007F0u); }

// e4m3: the chunk's values times 2^-120 * factor, rounded once. 2^-120 is the difference of the exponent biases: before the factor,
// subnormal e4m3 values are subnormal in fp32. bf16: the values unchanged.
template <bool kE4m3>
inline void decode(const Chunk<kE4m3>& chunk, float factor, float* values) {
  if constexpr (kE4m3) {
#pragma unroll
    for (int i = 0; i < kChunk; i += 4) {
      const uint32_t even = widen_pair(chunk.words[i / 4] << 8), odd = widen_pair(chunk.words[i / 4]);
      values[i] = as_float(even << 16) * factor;
      values[i + 1] = as_float(odd << 16) * factor;
      values[i + 2] = as_float(even & 0xFFFF0000u) * factor;
      values[i + 3] = as_float(odd & 0xFFFF0000u) * factor;
    }
    if (has_nan(chunk.words[0]) || has_nan(chunk.words[1])) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if ((chunk.words[i / 4] >> 8 * (i % 4) & 0x7Fu) == 0x7Fu) values[i] = as_float(0x7FC00000u);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] = as_float(i % 2 == 0 ? chunk.words[i / 2] << 16 : chunk.words[i / 2] & 0xFFFF0000u);
  }
}

// The scales of a weight row.
inline const __global float* weight_scales(const WeightRows& w, int64_t row) {
  return at<const float>(w.scale) + (w.is_e4m3 ? row / w.block_n * w.scale_row : 0);
}
// The scale of a chunk; 1 if the chunk has several scales or none.
inline float weight_scale(const WeightRows& w, const __global float* scales, int k) {
  if (!w.is_e4m3 || !w.is_chunked) return 1.0f;
  return scales[w.block_k_bits >= 0 ? k >> w.block_k_bits : k / w.block_k];
}
// The chunk's scaled values divided by kWeightFactor. `scale`: weight_scale(w, scales, k).
template <bool kE4m3>
inline void decode_weight(const WeightRows& w, const Chunk<kE4m3>& chunk, const __global float* scales, float scale, int k, int end,
                          float* v) {
  decode<kE4m3>(chunk, 0x1p120f / kWeightFactor * scale, v);
  if constexpr (kE4m3) {
    if (!w.is_chunked) {
      int block = min(k, end - 1) / w.block_k;
      int left = (block + 1) * w.block_k - k;  // values left in this block
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        v[i] *= scales[block];
        if (--left == 0 && k + i + 1 < end) ++block, left = w.block_k;
      }
    }
  }
}

// Stores features [feature, feature + kCount) of a token; features from n on do not exist.
template <int kCount>
inline void store_outputs(const ProductCall& call, int64_t token, int64_t group, int feature, const float* sums) {
  const int64_t first = token * call.y_token + group * call.y_group + feature;
  const bool is_whole = call.y_is_aligned && feature + kCount <= call.n;
  if (call.y_is_f32) {
    __global float* y = at<float>(call.y) + first;
    if (kCount == 4 && is_whole) {
      *(__global float4*)y = (float4)(sums[0], sums[1], sums[2], sums[3]);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (feature + i < call.n) y[i] = sums[i];
      }
    }
  } else {
    __global uint16_t* y = at<uint16_t>(call.y) + first;
    uint16_t bits[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) bits[i] = to_bf16(sums[i]).bits;
    if (kCount == 4 && is_whole) {
      *(__global uint2*)y = (uint2)(bits[0] | (uint32_t)bits[1] << 16, bits[2] | (uint32_t)bits[3] << 16);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (feature + i < call.n) y[i] = bits[i];
      }
    }
  }
}

// Adds the splits' sums of the item's output.
inline void add_sums(const ProductCall& call) {
  const int64_t outputs = call.tokens * call.groups * call.n;
  const int64_t output = get_global_id(0);
  if (output < outputs) {
    const __global float* from = at<const float>(call.sums) + output;
    float sum = 0.0f;
    for (int i = 0; i < call.splits; ++i) sum += from[i * outputs];
    const int64_t row = output / call.n, token = row / call.groups;
    store_outputs<1>(call, token, row - token * call.groups, (int)(output - row * call.n), &sum);
  }
}

}  // namespace strata::opencl
