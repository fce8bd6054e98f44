// Shapes, shared memory and parameters of the Hopper kernels of sparse_attn_decode.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/device/logarithms.h"
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/tile.h"
#include "formats/kv_rows.h"

namespace strata::cuda::sparse_decode {

inline constexpr int kChunkDims = 64;  // dimensions of a swizzled 128-byte row of fp16
inline constexpr int kValueDim = 512;
inline constexpr int kRotaryDims = kChunkDims;  // the last of the value dimensions
inline constexpr int kHalves = 2;               // of a tile: value dimensions 0..255 and 256..511, each summed by one consumer
inline constexpr int kFillsPerHalf = 2;         // of a half; producers signal each one when it is filled, so that logits start early

inline constexpr int kConsumerThreads = 2 * kWarpgroup;
inline constexpr int kProducerThreads = 2 * kWarpgroup;
inline constexpr int kThreads = kConsumerThreads + kProducerThreads;

template <KvFormat kFormat>
inline constexpr int kRowDims = fixed_row_dim(kFormat);
template <KvFormat kFormat>
inline constexpr int kChunks = kRowDims<kFormat> / kChunkDims;
inline constexpr int kLeftChunks = 4;

inline constexpr int kChunkBytes = kRowTile * kChunkDims * 2;

// Keys are stored in fp16 as value * 2^key_shift. With shift 8, e4m3 values times scales of 2^-23 .. 2^-1 are exact. These are all scales
// that the cache's quantiser writes for keys up to 224.
inline constexpr int kUsualKeyShift = 8;

// One of the two caches, with the indices into it.
struct Scope {
  const uint8_t* data;
  int64_t page_stride;
  Divisor page_size{1};
  uint32_t num_slots;  // 0: the scope is absent
  const int32_t* indices;
  int64_t indices_batch_stride, indices_query_stride;
  const int32_t* lengths;  // null: width
  int32_t width;
};

struct DecodeArgs {
  Scope scope[2];
  const uint16_t* q;  // bf16
  int64_t q_batch_stride, q_query_stride, q_head_stride;
  int32_t num_heads;
  int32_t num_queries;  // query tokens of a batch entry
  const float* sink;    // null: none
  float scale_log2;     // softmax_scale * log2(e)
  // A token's rows are cut into splits of tiles_per_split tiles; 0: into num_splits equal splits.
  int32_t num_splits, tiles_per_split;
  Divisor split_divisor{1};  // num_splits
  uint16_t* out;             // bf16
  int64_t out_batch_stride, out_query_stride, out_head_stride;
  float* lse;  // null: not written
  int64_t lse_batch_stride, lse_head_stride, lse_query_stride;
  float* max_logits;
  int64_t max_batch_stride, max_head_stride, max_query_stride;
  const int64_t* positions;    // of the output's rotation; null: results are not rotated
  const int64_t* q_positions;  // of the queries' rotation; null: queries are already normalised and rotated
  float q_eps;
  const float* cos_sin;
  int64_t cos_sin_stride, cos_sin_rows;
  // Several splits, [token, split, head]: a split's result, normalised without the sink, as fp16 multiples of split_unshift, with its lse
  // and maximum in base 2.
  uint16_t* split_out;
  float* split_lse;
  float* split_max;
  float* split_unshift;
  // Prefetch of the next kernel's weights (next_weights.cuh).
  const uint8_t* next;
  int64_t next_stride;
  int32_t next_bytes, next_lanes, next_times;
  bool combine_first;  // even cuts: the next kernel starts when the splits are combined, not concurrently with the combine kernel
  // A schedule (SparseAttnDecodeParams); null: none. With a schedule num_splits is 1, and rows of splits are [split, head].
  const int32_t* work_items;
  const int32_t* combine_rows;
  int32_t num_combine_rows;
  int32_t next_blocks;  // few heads: CTAs that prefetch next weights; other CTAs would repeat their ranges
};

}  // namespace strata::cuda::sparse_decode
