// The lightning indexer: query side, logits, selection. V4 specification 10, MLA specification 11.
// Errors of all of them: invalid_argument for shapes, dtypes, formats, devices, scales that are not positive; on host-visible memory also
// for lengths outside their bounds, positions outside the table, and candidates whose page is missing.
#pragma once

#include <optional>

#include "strata/kv_format.h"
#include "strata/ops/rope.h"
#include "strata/tensor.h"

namespace strata {

// Rotate, optionally Hadamard, quantise, and fold the scales into the head weights: V4 10.1 (fused_indexer_q_rope_quant), MLA 11.2-11.5.
// By q_out: e4m3 codes: weights_out = ((w * q_scale) * softmax_scale) * head_scale;  u8 MXFP4 pairs and bf16: (w * softmax_scale) *
// head_scale.
struct IndexerQueryParams {
  TensorView q{};          // bf16 [T, Hi, Di]
  TensorView weights{};    // bf16 or f32 [T, Hi]
  TensorView positions{};  // i64 [T]
  TensorView cos_sin{};    // f32 [max_positions, R]; absent: no rotation
  RopePairing pairing = RopePairing::interleaved;
  RopeLanes lanes = RopeLanes::last;
  bool hadamard = false;    // Di must be a power of two
  float softmax_scale = 0;  // Di^-0.5
  float head_scale = 0;     // Hi^-0.5
  float amax_floor = 1e-4f;
  TensorView q_out{};        // e4m3 [T, Hi, Di], u8 [T, Hi, Di/2] (MXFP4), or bf16 [T, Hi, Di] (unquantised); contiguous
  TensorView q_scale_out{};  // MXFP4 only: e8m0 [T, Hi, Di/32], contiguous
  TensorView weights_out{};  // f32 [T, Hi], contiguous
};

// logits[t, j] = k_scale[j] * sum_h weights[t, h] * relu(sum_d q[t, h, d] * k[j, d]) for j < lengths[t]; fp32: V4 10.3, MLA 11.6.
// Entry j of token t's request is row block_table[req][j / page_size] * page_size + j % page_size. Columns j >= lengths[t] are not written.
struct IndexerLogitsParams {
  TensorView q{};             // e4m3 [T, Hi, Di], u8 [T, Hi, Di/2], bf16 [T, Hi, Di]; contiguous; matches cache.format
  TensorView q_scale{};       // MXFP4 only: e8m0 [T, Hi, Di/32]
  TensorView weights{};       // f32 [T, Hi], contiguous
  PagedCache cache{};         // indexer_fp8 with e4m3 q, indexer_mxfp4 with u8 q, bf16 with bf16 q
  TensorView block_table{};   // i32 [R, max_blocks]
  TensorView token_to_req{};  // i32 [T]
  TensorView lengths{};       // i32 [T]: number of candidates of each token; 0 for padding
  TensorView logits{};        // f32 [T, C], C >= every length
};

// The k largest logits of each row as ascending entry numbers, left-packed, -1 behind: V4 10.4, MLA 11.8.
// lengths[t] <= k: 0..lengths[t]-1. Ties: the smaller entry wins. NaN counts as -inf. Columns at or past lengths[t] do not matter;
// a GPU may read up to three of them.
struct TopkSelectParams {
  TensorView logits{};        // f32 [T, C]
  TensorView lengths{};       // i32 [T], 0 <= lengths[t] <= C
  TensorView topk_indices{};  // i32 [T, k]; every column of every row is written
};

// A prologue: the query of the op indexer_query, in the form that the cache's keys need. Fields as in IndexerQueryParams.
struct IndexerQueryPrologue {
  TensorView q{};
  TensorView weights{};
  TensorView positions{};
  TensorView cos_sin{};
  RopePairing pairing = RopePairing::interleaved;
  RopeLanes lanes = RopeLanes::last;
  bool hadamard = false;
  float softmax_scale = 0;
  float head_scale = 0;
  float amax_floor = 1e-4f;
};
// An epilogue: the entries of the first S tokens as slots of another cache, as the op compute_global_topk makes them.
struct TopkSlots {
  TensorView block_table{};  // i32 [R, max_blocks]
  int32_t page_size = 0;     // rows of a page of that cache
  TensorView slots{};        // i32 [S, k], S <= T
  TensorView lens{};         // i32 [S]
};

// Logits and selection in one: the same result as IndexerLogits followed by TopkSelect, with bounded workspace (no [T, C] matrix).
// max_length <= k (short context, not in captured graphs): 0..lengths[t]-1, nothing but lengths is read and q, cache etc. may be absent;
// for slots token_to_req is needed all the same.
struct IndexerTopkParams {
  TensorView q{};  // these six as in IndexerLogitsParams; q, q_scale and weights absent with query_prologue
  TensorView q_scale{};
  TensorView weights{};
  PagedCache cache{};
  TensorView block_table{};
  TensorView token_to_req{};
  TensorView lengths{};  // i32 [T]
  std::optional<IndexerQueryPrologue> query_prologue{};
  int64_t max_length = 0;     // host-side upper bound of lengths
  TensorView topk_indices{};  // i32 [T, k]
  std::optional<TopkSlots> slots_epilogue{};
};

}  // namespace strata
