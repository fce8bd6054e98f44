// The arguments of the kernels of this folder, for host and device code.
#pragma once

#include <cstdint>

namespace strata::opencl {

inline constexpr int kChunk = 8;  // consecutive values of a row that an item loads at once

// Few tokens: a work-group computes kFewFeatures features of one group of the weight. Its items take chunks of k round-robin.
inline constexpr int kFewItems = 128, kFewFeatures = 4, kFewTokens = 8;

// Tiles: 16 x 8 items, each with 4 features and 2, 4 or 8 tokens.
inline constexpr int kTileItems = 128, kTileFeatures = 64, kTileDepth = 32, kMostTileTokens = 64;
inline constexpr int kBandTiles = 16;  // token tiles that use the same feature tile one after another

// Matrix engine. Few tokens: a sub-group has enough features that their bytes in flight hide the memory latency. Tiles: 128 features by 32,
// 64 or 128 tokens.
inline constexpr int kFewSubgroups = 8, kFewE4m3Features = 16, kFewBf16Features = 8, kFewMatrixTokens = 16;
inline constexpr int kMatrixFeatures = 128, kMatrixTileDepth = 32, kSubgroupTokens = 32, kScaledTileTokens = 64,
                     kMostMatrixTileTokens = 128;
inline constexpr int kMatrixRowsOfScale = 8;  // features that share a scale

inline constexpr int kSumItems = 128;
inline constexpr int kQuantizeItems = 128;  // 16 share a quantisation block

// Decoded e4m3 weights lack this factor, which the sums get instead. Then the decoder's factor is finite for scales below 2^28.
inline constexpr float kWeightFactor = 0x1p20f;

// x of both linear ops: e4m3 with an fp32 scale per 128 channels, or bf16 with or without such scales.
struct ActivationRows {
  uint64_t values, scale;
  int64_t token, group, scale_token, scale_group;  // strides in elements
  int32_t is_e4m3;
  int32_t is_aligned;  // chunks begin at multiples of their size in bytes
};

struct WeightRows {
  uint64_t values, scale;
  int64_t scale_row;  // elements between the scales of successive rows of blocks
  int64_t block_n;
  int32_t block_k;
  int32_t block_k_bits;  // log2 of block_k; negative if block_k is no power of two
  int32_t is_e4m3, is_aligned;
  int32_t is_chunked;  // block_k is a multiple of kChunk: a chunk has one scale
};

struct ProductCall {
  ActivationRows x;
  WeightRows weight;
  uint64_t y;
  int64_t y_token, y_group;
  int64_t tokens;
  int32_t groups, n, k;
  int32_t y_is_f32, y_is_aligned;  // aligned: groups of four features begin at multiples of their size in bytes
  // Tiles: if k is split, each split stores fp32 sums [splits, tokens, groups, n], and a second kernel adds them.
  int32_t splits, split_k;
  uint64_t sums;
  int32_t few_slices;  // few tokens, matrix engine: sub-groups among which k is split; divides kFewSubgroups
};

// Quantises bf16 rows x to e4m3 rows with an fp32 scale per 128 channels. bf16_values: stores the e4m3 values as bf16; if `scale` is 0,
// times their scales (exact for powers of two).
struct QuantizeCall {
  uint64_t x, values, scale;
  int64_t x_stride, values_stride, scale_stride;  // in elements
  int64_t tokens;
  int32_t columns;
  int32_t is_ue8m0, is_aligned, bf16_values;
};

}  // namespace strata::opencl
