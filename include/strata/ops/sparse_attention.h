// Sparse attention: softmax over selected rows; keys and values are the same vectors. V4 specification 14, MLA specification 8 and 13.
#pragma once

#include <optional>

#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// One query and head attend to a set S of rows: l_s = scale * <q, k_s>; lse = ln sum exp(l_s), without the sink;
//   out = sum exp(l_s) v_s / (sum exp(l_s) + exp(sink)), v_s = the first Dv dimensions of row s.
// Empty S: out = 0 for every sink, lse = +inf, max_logits = -inf. Rows outside S are never read.

// Prologue: q := qnorm_rope(q), as the op qnorm_rope_kv_insert computes it. V4 8.1.
struct QueryNormRope {
  TensorView positions{};  // i64 [T], 0 <= p < rows of cos_sin
  TensorView cos_sin{};    // f32 [max_positions, R], R <= D: the last R dimensions are rotated
  float eps = 1e-6f;       // added to the mean square in RMSNorm
};
// Epilogue: out := inverse_rope(out), as the op inverse_rope computes it. V4 15, step 1.
struct InverseRope {
  TensorView positions{};  // i64 [T], 0 <= p < rows of cos_sin
  TensorView cos_sin{};    // f32 [max_positions, R], R <= Dv: the last R dimensions are rotated
};

// sparse_attn_decode: attention over paged caches, with one or several query tokens per batch entry. V4 14.2. The V4 layer calls it with B
// = tokens and S = 1, for decode and for prefill directly from the caches.
// Entry i is in S iff i < topk_length[b] (absent: all) and indices[b, s, i] != -1. Entries from topk_length[b] on are ignored. Other
// negative or out-of-range entries before it are caller errors (invalid_argument on host-visible memory).
// Errors also: invalid_argument for shapes, dtypes, formats, devices, a scale that is not positive; on host-visible memory also NaN sinks.
//
// A schedule divides the call's rows among the thread blocks of an implementation. It helps where lengths differ or are far below the width
// of indices. BatchBuilder makes it, because it has the lengths on the host. Its bytes are private to the implementation and are not
// checked: a schedule of another call is the caller's error. An implementation that takes no such schedule ignores it. A schedule changes a
// result only by rounding.
// The schedule may be read before the preceding kernel has finished, so that kernel must not write it.
struct SparseAttnDecodeParams {
  TensorView q{};                                 // bf16 [B, S, H, D], D = 512 or 576; H = 1..128
  PagedCache cache{};                             // window or latent cache: fp8_ds_mla_v4, fp8_ds_mla, bf16, fp8_tensor; row_dim D
  TensorView indices{};                           // i32 [B, S, topk]: slots; -1: no row
  TensorView topk_length{};                       // i32 [B]; absent: topk
  PagedCache extra_cache{};                       // second set of rows, with its own page size and stride; not present(): none
  TensorView extra_indices{};                     // i32 [B, S, topk2]: slots of extra_cache
  TensorView extra_topk_length{};                 // i32 [B]; absent: topk2
  TensorView attn_sink{};                         // f32 [H], raw logits; -inf: no effect; absent: none
  float softmax_scale = 0;                        // factor of <q, k>; positive
  bool batch_invariant = false;                   // fixed KV splits: a token's result does not depend on the rest of the batch
  TensorView schedule{};                          // u8 [bytes], contiguous: Batch::c128_schedule; absent: none
  std::optional<QueryNormRope> query_prologue{};  // for the B*S tokens; q itself is not written. Absent: q is normalised and rotated
  std::optional<InverseRope> out_epilogue{};      // for the B*S tokens. Absent: out keeps its rotation
  TensorView out{};                               // bf16 [B, S, H, Dv], Dv <= D
  TensorView lse{};                               // f32 [B, H, S], natural logarithm; absent: not written
  TensorView max_logits{};                        // f32 [B, H, S]; absent: not written
};

// sparse_attn_prefill: attention over bf16 rows that were gathered before. V4 14.3. Entry i is in S iff i < topk_length[t] and 0 <=
// indices[t, i] < s_kv. Other entries are skipped without an error.
struct SparseAttnPrefillParams {
  TensorView q{};                // bf16 [T, H, D]
  TensorView kv{};               // bf16 [s_kv, D], rows contiguous
  TensorView indices{};          // i32 [T, topk]: rows of kv
  TensorView topk_length{};      // i32 [T]; absent: topk
  TensorView attn_sink{};        // f32 [H]; absent: none
  float softmax_scale = 0;       // factor of <q, k>; positive
  bool batch_invariant = false;  // as in SparseAttnDecodeParams
  TensorView out{};              // bf16 [T, H, Dv]
  TensorView lse{};              // f32 [T, H], natural logarithm; absent: not written
  TensorView max_logits{};       // f32 [T, H]; absent: not written
};

// merge_attn_states: one softmax from n partial results over disjoint rows. V4 14.4, MLA 7.2.
//   m = max lse_k;  out = sum_k exp(lse_k - m) o_k / (sum_k exp(lse_k - m) + exp(sink - m));  lse = m + ln sum exp(lse_k - m)
// Each o_k is normalised by its own sum, without the sink. lse_k = +inf or -inf marks an empty partial result. If all are empty, out = 0
// and lse = empty_lse.
// out and lse_out may alias one of the n partial results in o and lse, so results can be accumulated in place.
struct MergeAttnStatesParams {
  TensorView o{};          // f32 or bf16 [n, T, H, Dv]
  TensorView lse{};        // f32 [n, T, H], natural logarithm
  TensorView attn_sink{};  // f32 [H]; absent: none
  float empty_lse = 0;     // lse_out of an empty row: +inf (V4 14.1) or -inf (MLA 7.2)
  TensorView out{};        // bf16 or f32 [T, H, Dv]
  TensorView lse_out{};    // f32 [T, H]; absent: not written
};

}  // namespace strata
