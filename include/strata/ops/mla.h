// Multi-head Latent Attention (MLA): preparation of queries and keys before attention. MLA specification 5, 6, 9, 11 and 14.
#pragma once

#include "strata/kv_format.h"
#include "strata/ops/rope.h"
#include "strata/tensor.h"

namespace strata {

// mla_rope_kv_insert: rotation of query and key, and the cache write. MLA 14 (the rule, not the defect described there).
//   q[t, h, P:] = bf16(rope(q[t, h, P:], positions[t])) for every head; then, if given, q[t] = bf16(q[t] * llama_4_scaling[t]) in all
//     dimensions.
//   k_pe[t] = bf16(rope(k_pe[t], positions[t])) for every row, also those without a slot.
//   q_pe_out[t] = q[t, :, P:] for t < N_out: the rotary dimensions of an absorbed query, after its 512 latent dimensions.
//   cache row slot_mapping[t] = concat(c[t], k_pe[t]) for t < N_ins with slot_mapping[t] >= 0.
// Rotations use interleaved pairs, are computed in fp32 or better, and are rounded once. Without cos_sin nothing is rotated; without
// slot_mapping no cache row is written.
// No two tokens share a slot. Errors: invalid_argument for shapes, dtypes, formats, devices. On host-visible memory also for slots past the
// cache and positions outside the table; then nothing has been written.
struct MlaRopeKvInsertParams {
  TensorView q{};                // bf16 [T, H, P + R], in place; last dimension contiguous
  TensorView c{};                // bf16 [T, L], after kv_a_layernorm
  TensorView k_pe{};             // bf16 [T, R], R even, in place
  TensorView positions{};        // i64 [T]; absent without cos_sin
  TensorView cos_sin{};          // f32 [max_positions, R]; absent: no rotary embedding
  TensorView llama_4_scaling{};  // f32 [T]; absent: none
  TensorView q_pe_out{};         // bf16 [N_out, H, R], N_out <= T, last dimension contiguous; absent: not written
  TensorView slot_mapping{};     // i64 [N_ins], N_ins <= T; absent: no cache write
  PagedCache cache{};            // bf16, fp8_tensor, fp8_ds_mla; row_dim L + R
  bool ue8m0 = false;            // fp8_ds_mla: power-of-two scales (MLA 9.1)
};

// indexer_key_insert, the V3.2 indexer's keys: LayerNorm, rotation, optional Hadamard, quantisation, insertion. MLA 11.1-11.4 and 11.9.
//   y = bf16((k - mean) / sqrt(variance + eps) * weight + bias), biased variance;  y = bf16(rope(y));  with hadamard y = bf16(H y /
//     sqrt(Di));
//   cache row slot_mapping[t] = y[t] for t < N_ins with slot_mapping[t] >= 0.
// k is not modified. No two tokens share a slot. Errors: as of mla_rope_kv_insert.
struct IndexerKeyInsertParams {
  TensorView k{};                                 // bf16 [T, Di], before the norm
  TensorView weight{};                            // f32 [Di]
  TensorView bias{};                              // f32 [Di]
  float eps = 1e-6f;                              // independent of rms_norm_eps (MLA 11.1)
  TensorView positions{};                         // i64 [T]; absent without cos_sin
  TensorView cos_sin{};                           // f32 [max_positions, R], R <= Di; absent: no rotation
  RopePairing pairing = RopePairing::half_split;  // pairs of the rotation
  RopeSlice rope_slice = RopeSlice::first;        // which R of Di dimensions are rotated
  bool hadamard = false;                          // Di must be a power of two
  TensorView slot_mapping{};                      // i64 [N_ins], N_ins <= T
  PagedCache cache{};                             // indexer_fp8 (Di = 128) or bf16; row_dim Di
};

}  // namespace strata
