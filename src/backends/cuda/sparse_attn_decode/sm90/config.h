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

inline constexpr int kChunkLanes = 64;  // lanes of a swizzled 128-byte row of fp16
inline constexpr int kValueDim = 512;
inline constexpr int kRotaryLanes = kChunkLanes;  // the last of the values
inline constexpr int kHalves = 2;                 // a tile's value lanes 0..255, and the others: what one consumer adds up
inline constexpr int kParts = 2;  // of a half: the producers tell of each as soon as it is filled, so that logits start early

inline constexpr int kConsumerThreads = 2 * kWarpgroup;
inline constexpr int kProducerThreads = 2 * kWarpgroup;
inline constexpr int kThreads = kConsumerThreads + kProducerThreads;

template <KvFormat kFormat>
inline constexpr int kRowLanes = fixed_row_dim(kFormat);
template <KvFormat kFormat>
inline constexpr int kChunks = kRowLanes<kFormat> / kChunkLanes;
inline constexpr int kLeftChunks = 4;

inline constexpr int kChunkBytes = kRowTile * kChunkLanes * 2;

// Keys are held in fp16 as value * 2^key_shift. With 8, codes times scales of 2^-23 .. 2^-1 are exact: all that the cache's quantiser
// chooses for keys up to 224.
inline constexpr int kUsualKeyShift = 8;

// One of the two caches with the indices into it.
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
  // Rows of a token are cut into splits of tiles_per_split tiles; 0: into num_splits equal parts.
  int32_t num_splits, tiles_per_split;
  Divisor split_divisor{1};  // num_splits
  uint16_t* out;             // bf16
  int64_t out_batch_stride, out_query_stride, out_head_stride;
  float* lse;  // null: not wanted
  int64_t lse_batch_stride, lse_head_stride, lse_query_stride;
  float* max_logits;
  int64_t max_batch_stride, max_head_stride, max_query_stride;
  const int64_t* positions;    // of query tokens; null: results are not rotated
  const int64_t* q_positions;  // the same; null: queries are normalised and rotated already
  float q_eps;
  const float* cos_sin;
  int64_t cos_sin_stride, cos_sin_rows;
  // With several splits, [token, split, head]: results of a split, normalised without the sink, as fp16 multiples of part_unshift; their
  // lse and maximum in base 2.
  uint16_t* part_out;
  float* part_lse;
  float* part_max;
  float* part_unshift;
  // What the next kernel reads (next_weights.cuh).
  const uint8_t* next;
  int64_t next_apart;
  int32_t next_bytes, next_lanes, next_times;
  bool merge_first;  // even cuts: the next kernel begins when parts are merged, not beside the merge
  // A schedule (SparseAttnDecodeParams); null: none. num_splits is 1 then, and rows of parts are [part, head].
  const int32_t* pieces;
  const int32_t* merges;
  int32_t num_merges;
  int32_t next_blocks;  // of few heads that bring next weights near; others bring what these do
};

}  // namespace strata::cuda::sparse_decode
