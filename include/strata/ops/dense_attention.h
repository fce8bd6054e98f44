// Dense causal attention of Multi-head Latent Attention: MLA specification 7 and 8.
#pragma once

#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// Multi-query attention over the paged latent cache: every head reads the same rows; values are their first Dv lanes.
// Request b has the queries [query_start_loc[b], query_start_loc[b + 1]), rebased by the first entry. Query i of its n sees rows
// 0 .. seq_lens[b] - n + i (bottom-right causal); fewer than one row: out = 0, lse = +inf. Requests may differ in n, and have none.
// Row j of request b is slot block_table[b][j / page_size] * page_size + j % page_size. Table entries behind ceil(seq_lens[b] / page_size)
// and rows behind seq_lens[b] are never read; nor is anything of a request without queries. Errors: invalid_argument for shapes, dtypes,
// formats, devices; on host-visible memory also for query_start_loc that does not rise from its first entry to T more, lengths below 0 or
// past the bounds, and table entries, among those read, that are no page.
//
// A schedule says how the rows are shared out to the blocks of an implementation. BatchBuilder makes it, as it has the lengths on the host.
// Its bytes are the implementation's own and are not checked: a schedule of another call is the caller's error. An implementation that
// takes no such schedule ignores it. The result is the one without a schedule, rounded otherwise. The schedule, query_start_loc and
// seq_lens may be read before the preceding kernel has finished, so that kernel must not write them.
struct DenseAttnDecodeParams {
  TensorView q{};                // bf16 [T, H, D], D <= 576 (latent and rotary lanes), H = 1..128
  PagedCache cache{};            // bf16, fp8_tensor, fp8_ds_mla; row_dim D
  TensorView block_table{};      // i32 [B, max_blocks]
  TensorView query_start_loc{};  // i32 [B + 1]
  TensorView seq_lens{};         // i32 [B], the new tokens included; 0: padding request
  int64_t max_query_len = 0;     // host-side upper bounds of n and of seq_lens, for planning
  int64_t max_seq_len = 0;
  float softmax_scale = 0;       // of the 192-wide heads, never D^-0.5 (MLA 2)
  bool batch_invariant = false;  // fixed split of rows: a token's result does not depend on the rest of the batch
  TensorView schedule{};         // u8 [bytes], contiguous: Batch::mla_schedule; absent: none
  TensorView out{};              // bf16 [T, H, Dv], Dv <= D (512)
  TensorView lse{};              // f32 [T, H], natural logarithm; absent: not wanted
};

// Multi-head attention over keys and values in memory. A key is its head's k_nope, then the k_pe that all heads share.
// Request b has the queries and keys that the *_start_loc say, rebased by their first entry; both absent: one request, all rows.
// Query i of a request with n queries and m keys sees keys 0 .. m - n + i when causal (bottom-right), all m otherwise.
// No visible key: out = 0, lse = -inf (the mark that merge_attn_states reads as empty). Keys that nobody sees are not read.
// Errors: invalid_argument for shapes, dtypes, devices; on host-visible memory also for *_start_loc that do not rise from their first
// entry to Tq and Tk more, and for lengths past the bounds.
struct DenseAttnPrefillParams {
  TensorView q{};                // bf16 [Tq, H, P + R], P + R <= 576, H >= 1
  TensorView k_nope{};           // bf16 [Tk, H, P], last dimension contiguous: a slice of kv_b's output
  TensorView k_pe{};             // bf16 [Tk, R]
  TensorView v{};                // bf16 [Tk, H, V], V <= 576, last dimension contiguous
  TensorView query_start_loc{};  // i32 [B + 1]
  TensorView key_start_loc{};    // i32 [B + 1]
  int64_t max_query_len = 0;     // host-side upper bounds of n and m, for planning
  int64_t max_key_len = 0;
  bool causal = true;
  float softmax_scale = 0;
  TensorView out{};  // bf16 or f32 [Tq, H, V]
  TensorView lse{};  // f32 [Tq, H], natural logarithm; absent: not wanted
};

}  // namespace strata
