// The arguments of the kernels of this folder, for host and device code.
#pragma once

#include <cstdint>

namespace strata::opencl {

inline constexpr int kChunk = 8;  // consecutive values of a row that an item loads at once

// Few tokens: a group has kFewFeatures features of one group of the weight, its items share out k.
inline constexpr int kFewItems = 128, kFewFeatures = 4, kFewTokens = 8;

// Tiles: items are 16 x 8, each with 4 features and 2, 4 or 8 tokens.
inline constexpr int kTileItems = 128, kTileFeatures = 64, kTileDepth = 32, kMostTileTokens = 64;
inline constexpr int kBandTiles = 16;  // tiles of tokens that share a tile of features one after another

// On the matrix engine. Few tokens: a sub-group's features have enough bytes to hide the latency of memory. Tiles: 128 features of 32,
// 64 or 128 tokens.
inline constexpr int kFewSubgroups = 8, kFewE4m3Features = 16, kFewBf16Features = 8, kFewMatrixTokens = 16;
inline constexpr int kMatrixFeatures = 128, kMatrixTileDepth = 32, kSubgroupTokens = 32, kScaledTileTokens = 64,
                     kMostMatrixTileTokens = 128;
inline constexpr int kMatrixRowsOfScale = 8;  // features that have a scale together

inline constexpr int kSumItems = 128;
inline constexpr int kQuantizeItems = 128;  // 16 have a quantisation block together

// The decoder of e4m3 weights leaves out this factor: scales below 2^28 have a finite one then.
inline constexpr float kWeightFactor = 0x1p20f;

// x of both linear ops: e4m3 with an fp32 scale for each 128 channels, or bf16, which may have such scales too.
struct ActivationRows {
  uint64_t values, scale;
  int64_t token, group, scale_token, scale_group;  // strides in elements
  int32_t is_e4m3;
  int32_t is_aligned;  // chunks begin at multiples of their bytes
};

struct WeightRows {
  uint64_t values, scale;
  int64_t scale_row;  // elements between the scales of two rows of blocks
  int64_t block_n;
  int32_t block_k;
  int32_t block_k_bits;  // its logarithm; below 0 where it is no power of two
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
  int32_t y_is_f32, y_is_aligned;  // aligned: four features begin at a multiple of their bytes
  // Tiles: where k is split, fp32 sums [splits, tokens, groups, n] go to `sums`, and another kernel adds them.
  int32_t splits, split_k;
  uint64_t sums;
  int32_t few_parts;  // few tokens on the matrix engine: sub-groups that share out k, a divisor of kFewSubgroups
};

// bf16 rows x to e4m3 rows with an fp32 scale for each 128 channels. bf16_values: the same values as bf16, times the scales where `scale`
// is 0 (which is exact with powers of two).
struct QuantizeCall {
  uint64_t x, values, scale;
  int64_t x_stride, values_stride, scale_stride;  // elements
  int64_t tokens;
  int32_t columns;
  int32_t is_ue8m0, is_aligned, bf16_values;
};

}  // namespace strata::opencl
