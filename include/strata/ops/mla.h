// What Multi-head Latent Attention does to queries and keys before attention: MLA specification 5, 6, 9, 11 and 14.
#pragma once

#include "strata/kv_format.h"
#include "strata/ops/rope.h"
#include "strata/tensor.h"

namespace strata {

// Rotation of query and key, and the cache write, in one: MLA 14 (the rule, not the defect it describes).
//   q[t, h, P:] = bf16(rope(q[t, h, P:], positions[t])) for every head; then, when given, q[t] = bf16(q[t] * llama_4_scaling[t]) on all
//   lanes. k_pe[t] = bf16(rope(k_pe[t], positions[t])), every row, those without a slot too. q_pe_out[t] = q[t, :, P:] for t < N_out: where
//   an absorbed query of 512 latent lanes has its rotary lanes. cache row slot_mapping[t] = concat(c[t], k_pe[t]) for t < N_ins with
//   slot_mapping[t] >= 0.
// Rotations are interleaved pairs, computed in fp32 or better and rounded once. Without cos_sin nothing is rotated; without
// slot_mapping nothing is written: the unfused fallbacks are the same op with a part left out.
// Two tokens never share a slot. Errors: invalid_argument for shapes, dtypes, formats, devices; on host-visible memory also for slots
// past the cache and positions outside the table, before anything is written.
struct MlaRopeKvInsertParams {
  TensorView q{};                // bf16 [T, H, P + R], in place; last dimension contiguous
  TensorView c{};                // bf16 [T, L], after kv_a_layernorm
  TensorView k_pe{};             // bf16 [T, R], R even, in place
  TensorView positions{};        // i64 [T]; absent without cos_sin
  TensorView cos_sin{};          // f32 [max_positions, R]; absent: no rotary embedding
  TensorView llama_4_scaling{};  // f32 [T]; absent: none
  TensorView q_pe_out{};         // bf16 [N_out, H, R], N_out <= T, last dimension contiguous; absent: not wanted
  TensorView slot_mapping{};     // i64 [N_ins], N_ins <= T; absent: no cache write
  PagedCache cache{};            // bf16, fp8_tensor, fp8_ds_mla; row_dim L + R
  bool ue8m0 = false;            // fp8_ds_mla: power-of-two scales (MLA 9.1)
};

// The V3.2 indexer's keys: LayerNorm, rotation, optional Hadamard, quantise, insert: MLA 11.1-11.4 and 11.9.
//   y = bf16((k - mean) / sqrt(variance + eps) * weight + bias), biased variance;  y = bf16(rope(y));  y = bf16(H y / sqrt(Di)) with
//   hadamard; cache row slot_mapping[t] = y[t] for t < N_ins with slot_mapping[t] >= 0.
// k is not modified. Two tokens never share a slot. Errors: as above.
struct IndexerKeyInsertParams {
  TensorView k{};          // bf16 [T, Di], before the norm
  TensorView weight{};     // f32 [Di]
  TensorView bias{};       // f32 [Di]
  float eps = 1e-6f;       // whatever rms_norm_eps is (MLA 11.1)
  TensorView positions{};  // i64 [T]; absent without cos_sin
  TensorView cos_sin{};    // f32 [max_positions, R], R <= Di; absent: no rotation
  RopePairing pairing = RopePairing::half_split;
  RopeLanes lanes = RopeLanes::first;
  bool hadamard = false;      // Di must be a power of two
  TensorView slot_mapping{};  // i64 [N_ins], N_ins <= T
  PagedCache cache{};         // indexer_fp8 (Di = 128) or bf16; row_dim Di
};

}  // namespace strata
