// Dense attention of Multi-head Latent Attention (MLA). MLA specification 7 and 8.
#ifndef STRATA_C_OPS_DENSE_ATTENTION_H
#define STRATA_C_OPS_DENSE_ATTENTION_H

#include "strata/c/op.h"

#if defined(__cplusplus)
extern "C" {
#endif

// dense_attn_decode: attention over the paged latent cache. Values are the first Dv dimensions of a row. MLA 8.
// Request b has the queries [query_start_loc[b], query_start_loc[b + 1]), minus query_start_loc[0]. Causal: query i of its n queries sees
// rows 0 .. seq_lens[b] - n + i (bottom-right). Not causal: every query sees rows 0 .. seq_lens[b] - 1. A query that sees no row: out = 0,
// lse = +inf. Requests may differ in n, and n may be 0.
// Row j of request b is slot block_table[b][j / page_size] * page_size + j % page_size. Table entries from ceil(seq_lens[b] / page_size) on
// and rows from seq_lens[b] on are never read. Nothing of a request without queries is read.
//
// With K = num_kv_heads > 1 a slot has K rows next to each other, one per KV head: pages are [page_size, K, D], FlashMLA's k_cache. With R
// the bytes of one row, the row of KV head g of a slot is at slot / page_size * page_stride + (slot % page_size * K + g) * R, and
// page_stride is at least page_size * K * R. K divides H. Query head h reads the rows of KV head h / (H / K): consecutive heads share one.
// The call computes what K calls would, each with H / K heads and the rows of one KV head.
// Errors: STRATA_INVALID_ARGUMENT for shapes, dtypes, formats, devices. On host-visible memory also for query_start_loc that does not
// ascend from its first entry to T more, lengths below 0 or past the bounds, and table entries, among those read, that are not pages.
//
// A schedule divides the rows among the thread blocks of an implementation. A batch builder makes it, because it has the lengths on the
// host. Its bytes are private to the implementation and are not checked: a schedule of another call is the caller's error. An
// implementation that takes no such schedule ignores it. Calls with K > 1 ignore it. It follows from the lengths alone, so it serves causal
// and other calls alike. A schedule changes a result only by rounding.
// The schedule, query_start_loc and seq_lens may be read before the preceding kernel has finished, so that kernel must not write them.
typedef struct strata_dense_attn_decode_params {
  size_t struct_size;                  // sizeof(strata_dense_attn_decode_params)
  strata_tensor_view q;                // bf16 [T, H, D], D <= 576 (latent, then rotary dimensions), H / K = 1..128
  const strata_paged_cache* cache;     // bf16, fp8_tensor, fp8_ds_mla (K = 1 only); row_dim D
  int32_t num_kv_heads;                // K >= 1: rows of a slot
  strata_tensor_view block_table;      // i32 [B, max_blocks]: pages
  strata_tensor_view query_start_loc;  // i32 [B + 1]
  strata_tensor_view seq_lens;         // i32 [B], the new tokens included; 0: padding request
  int64_t max_query_len;               // host-side upper bound of n, for planning
  int64_t max_seq_len;                 // host-side upper bound of seq_lens, for planning
  int32_t causal;                      // flag: false: every query sees all rows of its request
  float softmax_scale;                 // that of the 192-wide heads, never D^-0.5 (MLA 2)
  int32_t batch_invariant;             // flag: fixed KV splits: a token's result does not depend on the rest of the batch
  strata_tensor_view schedule;         // u8 [bytes], contiguous: the batch's mla_schedule; absent: none
  strata_tensor_view out;              // bf16 [T, H, Dv], Dv <= D (512)
  strata_tensor_view lse;              // f32 [T, H], natural logarithm; absent: not written
} strata_dense_attn_decode_params;
// The defaults: num_kv_heads 1, causal 1; otherwise zeros.
static inline strata_dense_attn_decode_params strata_dense_attn_decode_params_default(void) {
  strata_dense_attn_decode_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.num_kv_heads = 1;
  params.causal = 1;
  return params;
}
// Runs dense_attn_decode.
STRATA_API strata_status strata_dense_attn_decode(strata_device device, const strata_dense_attn_decode_params* params,
                                                  const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_dense_attn_decode needs.
STRATA_API strata_status strata_dense_attn_decode_workspace_bytes(strata_device device, const strata_dense_attn_decode_params* params,
                                                                  int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_dense_attn_decode selects.
STRATA_API strata_status strata_dense_attn_decode_implementation(strata_device device, const strata_dense_attn_decode_params* params,
                                                                 const char** name) STRATA_NOEXCEPT;

// dense_attn_prefill: multi-head attention over keys and values in memory. A key is its head's k_nope, then the k_pe that all heads share.
// MLA 7.
// Request b has the queries and keys of query_start_loc and key_start_loc, minus their first entries. Both absent: one request with all
// rows.
// Causal: query i of n queries sees keys 0 .. m - n + i of m keys (bottom-right). Not causal: every query sees all m. Keys that no query
// sees are not read.
// A query that sees no key: out = 0, lse = -inf, which merge_attn_states reads as empty.
// Errors: STRATA_INVALID_ARGUMENT for shapes, dtypes, devices. On host-visible memory also for *_start_loc that do not ascend from their
// first entry to Tq and Tk more, and for lengths past the bounds.
typedef struct strata_dense_attn_prefill_params {
  size_t struct_size;                  // sizeof(strata_dense_attn_prefill_params)
  strata_tensor_view q;                // bf16 [Tq, H, P + R], P + R <= 576, H >= 1
  strata_tensor_view k_nope;           // bf16 [Tk, H, P], last dimension contiguous: a slice of kv_b's output
  strata_tensor_view k_pe;             // bf16 [Tk, R]
  strata_tensor_view v;                // bf16 [Tk, H, V], V <= 576, last dimension contiguous
  strata_tensor_view query_start_loc;  // i32 [B + 1]
  strata_tensor_view key_start_loc;    // i32 [B + 1]
  int64_t max_query_len;               // host-side upper bound of n, for planning
  int64_t max_key_len;                 // host-side upper bound of m, for planning
  int32_t causal;                      // flag: false: every query sees all keys of its request
  float softmax_scale;                 // factor of <q, k>; positive
  strata_tensor_view out;              // bf16 or f32 [Tq, H, V]
  strata_tensor_view lse;              // f32 [Tq, H], natural logarithm; absent: not written
} strata_dense_attn_prefill_params;
// The defaults: causal 1; otherwise zeros.
static inline strata_dense_attn_prefill_params strata_dense_attn_prefill_params_default(void) {
  strata_dense_attn_prefill_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.causal = 1;
  return params;
}
// Runs dense_attn_prefill.
STRATA_API strata_status strata_dense_attn_prefill(strata_device device, const strata_dense_attn_prefill_params* params,
                                                   const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_dense_attn_prefill needs.
STRATA_API strata_status strata_dense_attn_prefill_workspace_bytes(strata_device device, const strata_dense_attn_prefill_params* params,
                                                                   int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_dense_attn_prefill selects.
STRATA_API strata_status strata_dense_attn_prefill_implementation(strata_device device, const strata_dense_attn_prefill_params* params,
                                                                  const char** name) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
