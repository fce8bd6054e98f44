// Writing keys into paged caches and reading them back as bf16 rows: V4 specification 5.5, 6, 8 and 13.
#pragma once

#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// Per-head query norm + RoPE, and key RoPE + quantise + insert, as one horizontally fused op: V4 8.1 and 8.2.
//   q_out[n, h] = rope(q[n, h] * rsqrt(mean(q[n, h]^2) + eps), positions[n]) for every n; heads H..Hp-1 of q_out are +0.
//   cache row slot_mapping[n] = quantised rope(kv[n], positions[n]) for n < N_ins with slot_mapping[n] >= 0; other rows write nothing.
// Two tokens never share a slot. kv is not modified. q_out may be q when Hp == H.
// Errors: invalid_argument for shapes, dtypes, a format other than fp8_ds_mla_v4, bf16, fp8_tensor; on host-visible memory also
// for slots at or past cache.num_slots() and positions outside the table, before anything is written.
struct QNormRopeKvInsertParams {
  TensorView q{};             // bf16 [N, H, D]
  TensorView kv{};            // bf16 [N, D], already normalised by kv_norm
  TensorView positions{};     // i64 [N]
  TensorView cos_sin{};       // f32 [max_positions, R]: rotary lanes are the last R of D
  TensorView slot_mapping{};  // i64 [N_ins], N_ins <= N; absent: no cache (dummy run), only q is computed
  PagedCache cache{};         // row_dim D
  TensorView q_out{};         // bf16 [N, Hp, D], Hp >= H; or e4m3 [N, H, D] beside an fp8_tensor cache
  float eps = 1e-6f;
  float q_scale_inv = 1.0f;  // e4m3 q_out only: code = e4m3(clamp(q * q_scale_inv))
};

// Quantise rows that are already rotated and bf16, and insert them: V4 5.5 and 6.1 (quantize_and_insert_k_cache). fp8_tensor codes are of
// x * (1 / scale) (V4 6.5), in rows of 576 values of x / scale (MLA 9). Errors: as above.
struct QuantizeAndInsertKParams {
  TensorView k{};             // bf16 [N, D]
  TensorView slot_mapping{};  // i64 [N_ins], N_ins <= N; negative: skip
  PagedCache cache{};         // fp8_ds_mla_v4, bf16, fp8_tensor (D = row_dim), indexer_fp8, indexer_mxfp4 (D = 128), fp8_ds_mla (D = 576)
  bool ue8m0 = false;         // fp8_ds_mla only: power-of-two scales instead of amax/448 (MLA 9.1)
};

// Rows of the paged cache as bf16, for the workspace of gathered prefill: V4 13 (dequantize_and_gather_k_cache).
// For request c and i in [0, g), g = gather_lens ? gather_lens[c] : seq_lens[c]: pos = seq_lens[c] - g + i,
//   out[c, offset + i] = row block_table[c][pos / page_size] * page_size + pos % page_size.
// Other rows of out are not touched. Dequantisation is exact in bf16 for power-of-two scales. Errors: invalid_argument for shapes, dtypes,
// devices; on host-visible memory also for rows outside out and pages, among those read, that are missing.
struct DequantizeAndGatherKParams {
  PagedCache cache{};        // any format but state_f32
  TensorView seq_lens{};     // i32 [R], in rows of this cache
  TensorView gather_lens{};  // i32 [R]; absent: seq_lens
  TensorView block_table{};  // i32 [R, max_blocks]
  int64_t offset = 0;        // first row of out that is written
  TensorView out{};          // bf16 [R, M, row_dim]
};

}  // namespace strata
