// Tiles of linear layers on the matrix engine. A work-group computes 128 features of 32, 64 or 128 tokens over all of k or one split of it.
// A sub-group has 16 or 32 of the features and 32 of the tokens. The group copies 32 channels of both operands at a time to local memory as
// bf16: the weight as fragments of A, tokens as rows.
#pragma once

#include "backends/opencl/linear/engine.h"

namespace strata::opencl {

constexpr int kTileSteps = kMatrixTileDepth / kMatrixDepth, kRowChunks = kMatrixTileDepth / kChunk;
constexpr int kTokenPitch = kRowChunks + 1;  // in vectors of eight values: items of a load use different banks
constexpr int kTokenFragments = kSubgroupTokens / kWidth;
constexpr int kWeightVectors = kMatrixFeatures / kMatrixRows * kTileSteps * kFragmentWords / 4;  // in local memory

// Local memory of a tile, in vectors of 16 bytes.
constexpr int tile_vectors(int token_blocks) { return kWeightVectors + token_blocks * kSubgroupTokens * kTokenPitch; }
// Items of a group with token_blocks * 32 tokens, whose sub-groups have `fragments` fragments of A.
constexpr int tile_items(int fragments, int token_blocks) { return kMatrixFeatures / (fragments * kMatrixRows) * token_blocks * kWidth; }

// The position of the group's tile. Within a band of token tiles, tiles with the same features are consecutive.
struct MatrixPosition {
  uint32_t split, group, token;
  int feature;

  MatrixPosition(const ProductCall& call, uint32_t tile_tokens) {
    const uint32_t token_tiles = ((uint32_t)call.tokens + tile_tokens - 1) / tile_tokens;
    const uint32_t strips = ((uint32_t)call.n + kMatrixFeatures - 1) / kMatrixFeatures;
    uint32_t index = get_group_id(0);
    group = index / (strips * token_tiles);
    index -= group * (strips * token_tiles);
    split = group / (uint32_t)call.groups;
    group -= split * (uint32_t)call.groups;
    const uint32_t band = index / (strips * kBandTiles);
    index -= band * (strips * kBandTiles);
    const uint32_t band_tiles = min((uint32_t)kBandTiles, token_tiles - band * kBandTiles);
    feature = (int)(index / band_tiles) * kMatrixFeatures;
    token = (band * kBandTiles + index % band_tiles) * tile_tokens;
  }
};

// kScaled: scales multiply the sums of 128 channels. Otherwise scales are powers of two and multiply the operands. `nans`: one float per
// feature and token of the tile.
template <bool kE4m3X, bool kE4m3, bool kScaled, int kFragments, int kTokenBlocks>
inline void matrix_tile(const ProductCall& call, __local uint4* tile, __local float* nans) {
  constexpr int kItems = tile_items(kFragments, kTokenBlocks), kTokens = kTokenBlocks * kSubgroupTokens;
  constexpr int kRowItems = kItems / kRowChunks;  // tokens that the group loads at once
  constexpr int kWeightItems = kRowItems * kStoredRows;
  constexpr int kWeightLoads = kMatrixFeatures / kWeightItems, kXLoads = kTokens / kRowItems;
  constexpr int kXBytes = kE4m3X ? 1 : 2, kBytes = kE4m3 ? 1 : 2;
  constexpr bool kScalesWeight = kE4m3 && !kScaled, kScalesX = kE4m3X && !kScaled, kHasNans = kE4m3 || kE4m3X;
  static_assert(kWeightLoads > 0 && kXLoads > 0);
  __local uint32_t* const w_tile = (__local uint32_t*)tile;
  __local uint4* const x_tile = tile + kWeightVectors;
  __local float* const x_nans = nans + kMatrixFeatures;
  const MatrixPosition position(call, kTokens);
  const int item = get_local_id(0), lane = get_sub_group_local_id(), k = call.k;
  const int first_token = item / kRowChunks, first_row = first_token * kStoredRows, chunk = item % kRowChunks;
  const int64_t group = position.group;
  // Missing rows and tokens repeat another. Offsets within a tile fit 32 bits.
  const int last_row = call.n - 1 - position.feature, last_token = (int)min(call.tokens - 1 - position.token, (int64_t)kTokens);
  const uint32_t weight_row = position.group * (uint32_t)call.n + (uint32_t)position.feature;
  const uint32_t weight_pitch = (uint32_t)k * kBytes, x_pitch = (uint32_t)call.x.token * kXBytes;
  const __global uint8_t* weight = at<const uint8_t>(call.weight.values) + (uint64_t)weight_row * weight_pitch;
  const uint32_t weight_offset = (uint32_t)min(first_row, last_row) * weight_pitch;
  const __global uint8_t* x = at<const uint8_t>(call.x.values) + (position.token * call.x.token + group * call.x.group) * kXBytes;
  const uint32_t x_offset = (uint32_t)min(first_token, last_token) * x_pitch;
  const __global float* x_scales = at<const float>(call.x.scale) + position.token * call.x.scale_token + group * call.x.scale_group;
  const __global float* scales = at<const float>(call.weight.scale);
  const int begin = (int)position.split * call.split_k, end = min(k, begin + call.split_k);

  if constexpr (kHasNans) {
    for (int i = item; i < kMatrixFeatures + kTokens; i += kItems) nans[i] = 0.0f;
  }
  uint32_t scale_rows[kWeightLoads];
#pragma unroll
  for (int i = 0; i < kWeightLoads; ++i) {
    scale_rows[i] = kScalesWeight ? scale_row_of(call.weight, weight_row + (uint32_t)min(first_row + i * kWeightItems, last_row)) : 0;
  }
  Chunk<kE4m3> w_next[kWeightLoads][kStoredRows];
  Chunk<kE4m3X> x_next[kXLoads];
  float w_scales[kWeightLoads], x_factors[kXLoads];
  // Past the end it loads valid memory, which is not used.
  const auto prefetch = [&](int from) {
    const uint32_t channel = (uint32_t)min(from + chunk * kChunk, k - kChunk);
    const uint32_t column = kScalesWeight ? scale_column_of(call.weight, min(from, k - 1)) : 0;
    const uint32_t rows = weight_offset + channel * kBytes;
#pragma unroll
    for (int i = 0; i < kWeightLoads; ++i) {
#pragma unroll
      for (int r = 0; r < kStoredRows; ++r) {
        const int row = i * kWeightItems + r;
        w_next[i][r] = load_whole_chunk<kE4m3>(weight + (rows + (first_row + row <= last_row ? (uint32_t)row * weight_pitch : 0u)));
      }
      if constexpr (kScalesWeight) w_scales[i] = scales[scale_rows[i] + column];
    }
    const uint32_t token_rows = x_offset + channel * kXBytes;
#pragma unroll
    for (int i = 0; i < kXLoads; ++i) {
      const int token = i * kRowItems;
      const bool is_there = first_token + token <= last_token;
      x_next[i] = load_whole_chunk<kE4m3X>(x + (token_rows + (is_there ? (uint32_t)token * x_pitch : 0u)));
      if constexpr (kScalesX) {
        const uint32_t row = (uint32_t)min(first_token + token, last_token);
        x_factors[i] = x_scales[row * (uint32_t)call.x.scale_token + channel / kActivationBlock];
      }
    }
  };

  const int subgroup = get_sub_group_id(), token_block = subgroup % kTokenBlocks, feature_block = subgroup / kTokenBlocks;
  const int own_feature = feature_block * kFragments * kMatrixRows, own_token = token_block * kSubgroupTokens + lane;
  const __local uint32_t* own_a = w_tile + feature_block * kFragments * kTileSteps * kFragmentWords;
  const __local uint4* own_b = x_tile + own_token * kTokenPitch;
  FragmentC sums[kFragments][kTokenFragments], block[kFragments][kTokenFragments];
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int t = 0; t < kTokenFragments; ++t) {
      sums[f][t] = 0.0f;
      if constexpr (kScaled) block[f][t] = 0.0f;
    }
  }
  prefetch(begin);
  for (int from = begin; from < end; from += kMatrixTileDepth) {
    barrier(CLK_LOCAL_MEM_FENCE);
    // Always 0, but the compiler does not know it. Otherwise it keeps the address of each access in a register throughout the loop.
    const int zero = from >> 30;
    const bool is_there = from + chunk * kChunk < end;
    bool is_nan = false;
#pragma unroll
    for (int i = 0; i < kWeightLoads; ++i) {
#pragma unroll
      for (int r = 0; r < kStoredRows; ++r) {
        keep_if(is_there, w_next[i][r]);
        is_nan = is_nan | has_nan(w_next[i][r]);
      }
      // The factor is finite for scales below 2^28.
      store_a<kTileSteps>(w_tile + zero, first_row + i * kWeightItems, chunk, w_next[i],
                          kScalesWeight ? 0x1p120f / kWeightFactor * w_scales[i] : 0x1p120f);
    }
#pragma unroll
    for (int i = 0; i < kXLoads; ++i) {
      keep_if(is_there, x_next[i]);
      is_nan = is_nan | has_nan(x_next[i]);
      uint4 words = bf16_words(x_next[i], 0x1p120f);
      if constexpr (kScalesX) {
        words = (uint4)(scale_pair(words.x, x_factors[i]), scale_pair(words.y, x_factors[i]), scale_pair(words.z, x_factors[i]),
                        scale_pair(words.w, x_factors[i]));
      }
      x_tile[(zero + first_token + i * kRowItems) * kTokenPitch + chunk] = words;
    }
    if constexpr (kHasNans) {
      if (is_nan) {  // makes all sums of the row NaN; read after the last barrier
#pragma unroll
        for (int i = 0; i < kWeightLoads; ++i) {
#pragma unroll
          for (int r = 0; r < kStoredRows; ++r) {
            if (has_nan(w_next[i][r])) nans[first_row + i * kWeightItems + r] = as_float(0x7FC00000u);
          }
        }
#pragma unroll
        for (int i = 0; i < kXLoads; ++i) {
          if (has_nan(x_next[i])) x_nans[first_token + i * kRowItems] = as_float(0x7FC00000u);
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    prefetch(from + kMatrixTileDepth);
    const __local uint32_t* a_words = own_a + zero;
    const __local uint4* b_pairs = own_b + zero;
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      FragmentB b[kTokenFragments];
#pragma unroll
      for (int t = 0; t < kTokenFragments; ++t) b[t] = load_b_pairs(b_pairs + t * kWidth * kTokenPitch + step * 2, 1);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        const FragmentA a = load_a_words(a_words + (f * kTileSteps + step) * kFragmentWords);
#pragma unroll
        for (int t = 0; t < kTokenFragments; ++t) {
          if constexpr (kScaled) {
            block[f][t] = multiply_add(a, b[t], block[f][t]);
          } else {
            sums[f][t] = multiply_add(a, b[t], sums[f][t]);
          }
        }
      }
    }
    if constexpr (kScaled) {
      // Splits begin at multiples of 128 channels.
      const int next = from + kMatrixTileDepth;
      if (next % kActivationBlock == 0 || next >= end) {
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          float scale = 1.0f;
          if constexpr (kE4m3) {
            const uint32_t row = weight_row + (uint32_t)min(own_feature + f * kMatrixRows, last_row);
            scale = scales[scale_row_of(call.weight, row) + scale_column_of(call.weight, from)];
          }
#pragma unroll
          for (int t = 0; t < kTokenFragments; ++t) {
            const uint32_t token = (uint32_t)min(own_token + t * kWidth, last_token);
            const float x_scale =
                call.x.scale != 0 ? x_scales[token * (uint32_t)call.x.scale_token + (uint32_t)from / kActivationBlock] : 1.0f;
            sums[f][t] = fma(block[f][t], (FragmentC)(x_scale * scale), sums[f][t]);
            block[f][t] = 0.0f;
          }
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokenFragments; ++t) {
    const int token = own_token + t * kWidth;
    if (token <= last_token) {
      const Results to = results_of(call, position.split, (int64_t)position.token + token, group);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        const int feature = own_feature + f * kMatrixRows;
        FragmentC results = kScalesWeight ? sums[f][t] * kWeightFactor : sums[f][t];
        if constexpr (kHasNans) {
          const __local float4* row_nans = (const __local float4*)(nans + feature);
          results += (FragmentC)(row_nans[0], row_nans[1]) + x_nans[token];
        }
        store_fragment(to, position.feature + feature, call.n, results);
      }
    }
  }
}

}  // namespace strata::opencl

#define MATRIX_TILE(name, e4m3_x, e4m3, is_scaled, fragments, token_blocks)                                                                \
  STRATA_SUBGROUPS __attribute__((reqd_work_group_size(tile_items(fragments, token_blocks), 1, 1))) __kernel void name(ProductCall call) { \
    __local uint4 tile[tile_vectors(token_blocks)] __attribute__((aligned(64)));                                                           \
    __local float nans[kMatrixFeatures + token_blocks * kSubgroupTokens] __attribute__((aligned(64)));                                     \
    matrix_tile<e4m3_x, e4m3, is_scaled, fragments, token_blocks>(call, tile, nans);                                                       \
  }
