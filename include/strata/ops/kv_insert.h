// Inserting keys into paged caches, and reading them back as bf16 rows. V4 specification 5.5, 6, 8 and 13.
#pragma once

#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// qnorm_rope_kv_insert: per-head RMSNorm and rotation of queries; rotation, quantisation and cache insertion of keys. One horizontally
// fused op, V4 8.1 and 8.2.
//   q_out[n, h] = rope(q[n, h] * rsqrt(mean(q[n, h]^2) + eps), positions[n]) for every n; heads H..Hp-1 of q_out are +0.
//   cache row slot_mapping[n] = quantised rope(kv[n], positions[n]) for n < N_ins with slot_mapping[n] >= 0; other rows write nothing.
// No two tokens share a slot. kv is not modified. q_out may be q when Hp == H.
// Errors: invalid_argument for shapes, dtypes, and formats other than fp8_ds_mla_v4, bf16, fp8_tensor. On host-visible memory also for
// slots from cache.num_slots() on and positions outside the table; then nothing has been written.
struct QNormRopeKvInsertParams {
  TensorView q{};             // bf16 [N, H, D]
  TensorView kv{};            // bf16 [N, D], already normalised by kv_norm
  TensorView positions{};     // i64 [N]
  TensorView cos_sin{};       // f32 [max_positions, R]: the last R of D dimensions are rotated
  TensorView slot_mapping{};  // i64 [N_ins], N_ins <= N; absent: no cache (dummy run), only q_out is computed
  PagedCache cache{};         // row_dim D
  TensorView q_out{};         // bf16 [N, Hp, D], Hp >= H; with an fp8_tensor cache also e4m3 [N, H, D]
  float eps = 1e-6f;          // added to the mean square in RMSNorm
  float q_scale_inv = 1.0f;   // e4m3 q_out only: q_out = e4m3(clamp(q * q_scale_inv))
};

// quantize_and_insert_k: quantises rows that are already rotated and bf16, and inserts them. V4 5.5 and 6.1 (quantize_and_insert_k_cache).
// fp8_tensor values are e4m3(x * (1 / scale)) (V4 6.5), in rows of 576 values e4m3(x / scale) (MLA 9). Errors: as of qnorm_rope_kv_insert.
struct QuantizeAndInsertKParams {
  TensorView k{};             // bf16 [N, D]
  TensorView slot_mapping{};  // i64 [N_ins], N_ins <= N; negative: skip
  PagedCache cache{};         // fp8_ds_mla_v4, bf16, fp8_tensor (D = row_dim), indexer_fp8, indexer_mxfp4 (D = 128), fp8_ds_mla (D = 576)
  bool ue8m0 = false;         // fp8_ds_mla only: power-of-two scales instead of amax/448 (MLA 9.1)
};

// dequantize_and_gather_k: rows of the paged cache as bf16, for the workspace of gathered prefill. V4 13 (dequantize_and_gather_k_cache).
// For request c and i in [0, g), g = gather_lens ? gather_lens[c] : seq_lens[c]: pos = seq_lens[c] - g + i,
//   out[c, offset + i] = row block_table[c][pos / page_size] * page_size + pos % page_size.
// Other rows of out are unchanged. With power-of-two scales dequantisation to bf16 is exact.
// Errors: invalid_argument for shapes, dtypes, devices. On host-visible memory also for rows outside out, and pages, among those read, that
// are missing.
struct DequantizeAndGatherKParams {
  PagedCache cache{};        // any format except state_f32
  TensorView seq_lens{};     // i32 [R], in rows of this cache
  TensorView gather_lens{};  // i32 [R]; absent: seq_lens
  TensorView block_table{};  // i32 [R, max_blocks]
  int64_t offset = 0;        // first written row of each request in out
  TensorView out{};          // bf16 [R, M, row_dim]
};

}  // namespace strata
