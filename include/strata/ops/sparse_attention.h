// Sparse attention: softmax over chosen rows, keys and values being the same vectors. V4 specification 14, MLA specification 8 and 13.
#pragma once

#include <optional>

#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// One query row and head over its set S of rows: l_s = scale * <q, k_s>; lse = ln sum exp(l_s), the sink excluded;
//   out = sum exp(l_s) v_s / (sum exp(l_s) + exp(sink)), v_s = the first Dv lanes of row s.
// Empty S: out = 0 for every sink, lse = +inf, max_logits = -inf. Rows that are not in S are never read.

// A prologue: q := qnorm_rope(q), as the op qnorm_rope_kv_insert does it: V4 8.1.
struct QueryNormRope {
  TensorView positions{};  // i64 [T], 0 <= p < rows of cos_sin
  TensorView cos_sin{};    // f32 [max_positions, R], R <= D: the last R dimensions are rotated
  float eps = 1e-6f;
};
// An epilogue: out := inverse_rope(out), as the op inverse_rope does it: V4 15, step 1.
struct InverseRope {
  TensorView positions{};  // i64 [T], 0 <= p < rows of cos_sin
  TensorView cos_sin{};    // f32 [max_positions, R], R <= Dv: the last R dimensions are rotated
};

// From paged caches, one query token or several per batch entry: V4 14.2. The V4 layer calls it with B = tokens, S = 1, for decode
// and for prefill straight from the caches.
// Entry i is in S iff i < topk_length[b] (no length: all) and indices[b, s, i] != -1. What lies behind the length is not looked at.
// Other negative or out-of-range entries inside the length are caller errors (invalid_argument on host-visible memory). Errors else:
// invalid_argument for shapes, dtypes, formats, devices, a scale that is not positive, and on host-visible memory NaN sinks.
//
// A schedule says how the call's rows are shared out to the blocks of an implementation, where lengths differ or are far below the widths
// of indices. BatchBuilder makes it, as it has the lengths on the host. Its bytes are the implementation's own and are not checked: a
// schedule of another call is the caller's error. An implementation that takes no such schedule ignores it. The result is the one without a
// schedule, rounded otherwise. It may be read before the preceding kernel has finished, so that kernel must not write it.
struct SparseAttnDecodeParams {
  TensorView q{};                  // bf16 [B, S, H, D], D = 512 or 576; H = 1..128
  PagedCache cache{};              // window or latent cache: fp8_ds_mla_v4, fp8_ds_mla, bf16, fp8_tensor; row_dim D
  TensorView indices{};            // i32 [B, S, topk], slots
  TensorView topk_length{};        // i32 [B]; absent: topk
  PagedCache extra_cache{};        // second scope, own page size and stride; not present(): none
  TensorView extra_indices{};      // i32 [B, S, topk2]
  TensorView extra_topk_length{};  // i32 [B]
  TensorView attn_sink{};          // f32 [H], raw logits, -inf: no effect; absent: none
  float softmax_scale = 0;
  bool batch_invariant = false;                   // fixed split of rows: a token's result does not depend on the rest of the batch
  TensorView schedule{};                          // u8 [bytes], contiguous: Batch::c128_schedule; absent: none
  std::optional<QueryNormRope> query_prologue{};  // of the B*S tokens; q itself is not written. Absent: q is normalised and rotated already
  std::optional<InverseRope> out_epilogue{};      // of the B*S tokens. Absent: out keeps its rotation
  TensorView out{};                               // bf16 [B, S, H, Dv], Dv <= D
  TensorView lse{};                               // f32 [B, H, S]; absent: not wanted
  TensorView max_logits{};                        // f32 [B, H, S]; absent: not wanted
};

// From bf16 rows gathered before: V4 14.3. Entry i is in S iff i < topk_length[t] and 0 <= indices[t, i] < s_kv; anything else is skipped
// silently.
struct SparseAttnPrefillParams {
  TensorView q{};            // bf16 [T, H, D]
  TensorView kv{};           // bf16 [s_kv, D], rows contiguous
  TensorView indices{};      // i32 [T, topk]
  TensorView topk_length{};  // i32 [T]; absent: topk
  TensorView attn_sink{};    // f32 [H]; absent: none
  float softmax_scale = 0;
  bool batch_invariant = false;  // as in decode
  TensorView out{};              // bf16 [T, H, Dv]
  TensorView lse{};              // f32 [T, H]; absent: not wanted
  TensorView max_logits{};       // f32 [T, H]; absent: not wanted
};

// One softmax from n partial results over disjoint rows: V4 14.4, MLA 7.2.
//   m = max lse_k;  out = sum_k exp(lse_k - m) o_k / (sum_k exp(lse_k - m) + exp(sink - m));  lse = m + ln sum exp(lse_k - m)
// out and lse_out may be one of the parts of o and lse: the result of the parts so far.
// Each o_k is normalised by its own sum, without the sink. lse_k of +inf or -inf marks an empty part. All empty: out = 0 and lse =
// empty_lse.
struct MergeAttnStatesParams {
  TensorView o{};          // f32 or bf16 [n, T, H, Dv]
  TensorView lse{};        // f32 [n, T, H], natural logarithm
  TensorView attn_sink{};  // f32 [H]; absent: none
  float empty_lse = 0;     // what lse_out gets for an empty row: +inf (V4 14.1) or -inf (MLA 7.2)
  TensorView out{};        // bf16 or f32 [T, H, Dv]
  TensorView lse_out{};    // f32 [T, H]; absent: not wanted
};

}  // namespace strata
