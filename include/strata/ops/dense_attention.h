// Dense causal attention of Multi-head Latent Attention: MLA specification 7 and 8.
#pragma once

#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// Decode as multi-query attention over the paged latent cache: every head reads the same rows; values are their first Dv lanes.
// Query s of request b sees rows 0 .. seq_lens[b] - S + s (bottom-right causal); fewer than one row: out = 0, lse = +inf.
// Row j of request b is slot block_table[b][j / page_size] * page_size + j % page_size. Table entries behind ceil(seq_lens[b] / page_size) and rows
// behind seq_lens[b] are never read.
struct DenseAttnDecodeParams {
  TensorView q{};            // bf16 [B, S, H, D], D = latent + rope lanes (576), H = 1..128
  PagedCache cache{};        // bf16, fp8_tensor, fp8_ds_mla; row_dim D
  TensorView block_table{};  // i32 [B, max_blocks]
  TensorView seq_lens{};     // i32 [B], the S new tokens included; 0: padding request
  float softmax_scale = 0;
  bool batch_invariant = false;  // fixed split of rows
  TensorView out{};          // bf16 [B, S, H, Dv], Dv <= D (512)
  TensorView lse{};          // f32 [B, H, S], natural logarithm; absent: not wanted
};

// Prefill as multi-head attention over keys and values in memory, request by request. A key is its head's k_nope and the shared k_pe.
// Query i of a request with n queries and m keys sees keys 0 .. m - n + i when causal (bottom-right), all m otherwise.
// No visible key: out = 0, lse = -inf (the mark that merge_attn_states reads as empty).
struct DenseAttnPrefillParams {
  TensorView q{};              // bf16 [Tq, H, P + R]
  TensorView k_nope{};         // bf16 [Tk, H, P], any strides with a contiguous last dimension
  TensorView k_pe{};           // bf16 [Tk, R], shared by all heads
  TensorView v{};              // bf16 [Tk, H, V]
  TensorView query_start_loc{};  // i32 [R + 1], rebased by its first entry
  TensorView key_start_loc{};    // i32 [R + 1], rebased by its first entry
  bool causal = true;
  float softmax_scale = 0;
  int64_t max_query_len = 0;   // host-side upper bounds, for planning
  int64_t max_key_len = 0;
  TensorView out{};            // bf16 or f32 [Tq, H, V]
  TensorView lse{};            // f32 [Tq, H]; absent: not wanted
};

}  // namespace strata
