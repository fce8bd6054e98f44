// The lightning indexer: query side, logits, top-k selection. V4 specification 10, MLA specification 11.
// Errors of all ops: invalid_argument for shapes, dtypes, formats, devices and scales that are not positive. On host-visible memory also
// for lengths outside their bounds, positions outside the table, and candidates whose page is missing.
#pragma once

#include <optional>

#include "strata/kv_format.h"
#include "strata/ops/rope.h"
#include "strata/tensor.h"

namespace strata {

// indexer_query: rotate, optionally apply Hadamard, quantise, and fold the scales into the head weights. V4 10.1
// (fused_indexer_q_rope_quant), MLA 11.2-11.5.
// q_out e4m3: weights_out = ((w * q_scale) * softmax_scale) * head_scale. q_out u8 (MXFP4) or bf16: weights_out = (w * softmax_scale) *
// head_scale.
struct IndexerQueryParams {
  TensorView q{};                                  // bf16 [T, Hi, Di]
  TensorView weights{};                            // bf16 or f32 [T, Hi]
  TensorView positions{};                          // i64 [T]
  TensorView cos_sin{};                            // f32 [max_positions, R]; absent: no rotation, positions are ignored
  RopePairing pairing = RopePairing::interleaved;  // pairs of the rotation
  RopeSlice rope_slice = RopeSlice::last;          // which R of Di dimensions are rotated
  bool hadamard = false;                           // Di must be a power of two
  float softmax_scale = 0;                         // Di^-0.5
  float head_scale = 0;                            // Hi^-0.5
  float amax_floor = 1e-4f;                        // e4m3 q_out: least amax from which a scale is computed
  TensorView q_out{};        // e4m3 [T, Hi, Di], u8 [T, Hi, Di/2] (MXFP4), or bf16 [T, Hi, Di] (unquantised); contiguous
  TensorView q_scale_out{};  // MXFP4 only: e8m0 [T, Hi, Di/32], contiguous
  TensorView weights_out{};  // f32 [T, Hi], contiguous
};

// indexer_logits, in fp32: V4 10.3, MLA 11.6. For j < lengths[t]:
//   logits[t, j] = k_scale[j] * sum_h weights[t, h] * relu(sum_d q[t, h, d] * k[j, d]).
// Candidate j of token t is row block_table[req][j / page_size] * page_size + j % page_size. Columns j >= lengths[t] are not written.
struct IndexerLogitsParams {
  TensorView q{};             // e4m3 [T, Hi, Di], u8 [T, Hi, Di/2], bf16 [T, Hi, Di]; contiguous; matches cache.format
  TensorView q_scale{};       // MXFP4 only: e8m0 [T, Hi, Di/32]
  TensorView weights{};       // f32 [T, Hi], contiguous
  PagedCache cache{};         // indexer_fp8 with e4m3 q, indexer_mxfp4 with u8 q, bf16 with bf16 q
  TensorView block_table{};   // i32 [R, max_blocks]
  TensorView token_to_req{};  // i32 [T]
  TensorView lengths{};       // i32 [T]: candidates of each token; 0 for padding
  TensorView logits{};        // f32 [T, C], C >= every length
};

// topk_select: the k largest logits of each row as ascending entry numbers, left-packed; -1 fills the rest. V4 10.4, MLA 11.8.
// lengths[t] <= k selects 0..lengths[t]-1. Of equal logits the smaller entry number wins. NaN counts as -inf. Columns from lengths[t] on
// never change the result; a GPU may read up to three of them.
struct TopkSelectParams {
  TensorView logits{};        // f32 [T, C]
  TensorView lengths{};       // i32 [T], 0 <= lengths[t] <= C
  TensorView topk_indices{};  // i32 [T, k]; every column of every row is written
};

// Prologue: computes the query as the op indexer_query does, in the form that the cache's format needs. Fields as in IndexerQueryParams.
struct IndexerQueryPrologue {
  TensorView q{};                                  // bf16 [T, Hi, Di]
  TensorView weights{};                            // bf16 or f32 [T, Hi]
  TensorView positions{};                          // i64 [T]
  TensorView cos_sin{};                            // f32 [max_positions, R]; absent: no rotation, positions are ignored
  RopePairing pairing = RopePairing::interleaved;  // pairs of the rotation
  RopeSlice rope_slice = RopeSlice::last;          // which R of Di dimensions are rotated
  bool hadamard = false;                           // Di must be a power of two
  float softmax_scale = 0;                         // Di^-0.5
  float head_scale = 0;                            // Hi^-0.5
  float amax_floor = 1e-4f;                        // e4m3 queries: least amax from which a scale is computed
};
// Epilogue: converts the selected entries of the first S tokens to slots of another cache, as the op compute_global_topk does.
struct TopkSlots {
  TensorView block_table{};  // i32 [R, max_blocks]
  int32_t page_size = 0;     // rows per page of that cache
  TensorView slots{};        // i32 [S, k], S <= T
  TensorView lens{};         // i32 [S]
};

// indexer_topk: logits and top-k selection in one op. The result is that of indexer_logits and topk_select, with bounded workspace (no [T,
// C] matrix).
// max_length <= k (short context, not in captured graphs) selects 0..lengths[t]-1. Then only lengths is read, and q, cache and so on may be
// absent; slots_epilogue still needs token_to_req.
struct IndexerTopkParams {
  // The first six are as in IndexerLogitsParams.
  TensorView q{};                                        // e4m3 [T, Hi, Di], u8 [T, Hi, Di/2], bf16 [T, Hi, Di]; absent with query_prologue
  TensorView q_scale{};                                  // MXFP4 only: e8m0 [T, Hi, Di/32]; absent with query_prologue
  TensorView weights{};                                  // f32 [T, Hi], contiguous; absent with query_prologue
  PagedCache cache{};                                    // indexer_fp8, indexer_mxfp4 or bf16, as q
  TensorView block_table{};                              // i32 [R, max_blocks]
  TensorView token_to_req{};                             // i32 [T]
  TensorView lengths{};                                  // i32 [T]: candidates of each token
  std::optional<IndexerQueryPrologue> query_prologue{};  // absent: q is quantised already
  int64_t max_length = 0;                                // host-side upper bound of lengths
  TensorView topk_indices{};                             // i32 [T, k]; every column of every row is written
  std::optional<TopkSlots> slots_epilogue{};             // absent: no slots are written
};

}  // namespace strata
