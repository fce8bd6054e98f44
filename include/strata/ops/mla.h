// What Multi-head Latent Attention does to queries and keys before attention: MLA specification 5, 6, 9, 11 and 14.
#pragma once

#include "strata/kv_format.h"
#include "strata/ops/rope.h"
#include "strata/tensor.h"

namespace strata {

// Rotation of query and key, and the cache write, in one: MLA 14 (the rule, not the defect it describes).
//   q[t, h, P:] = rope(q[t, h, P:], positions[t]) for every head; then, when given, q[t] = bf16(q[t] * llama_4_scaling[t]) on all lanes.
//   k_pe[t] = rope(k_pe[t], positions[t]) in place, every row, those without a slot too.
//   cache row slot_mapping[t] = concat(c[t], k_pe[t]) for t < N_ins with slot_mapping[t] >= 0.
// Without cos_sin nothing is rotated; without a cache (absent slot_mapping) nothing is written: the unfused fallbacks are the same op with a part left out.
struct MlaRopeKvInsertParams {
  TensorView q{};             // bf16 [T, H, P + R], in place; rows and heads may be strided
  TensorView c{};             // bf16 [T, L], after kv_a_layernorm
  TensorView k_pe{};          // bf16 [T, R], in place
  TensorView positions{};     // i64 [T]
  TensorView cos_sin{};       // f32 [max_positions, R]; absent: no rotary embedding
  TensorView llama_4_scaling{};  // f32 [T]; absent: none
  TensorView slot_mapping{};  // i64 [N_ins], N_ins <= T; absent: no cache write
  PagedCache cache{};         // bf16, fp8_tensor, fp8_ds_mla; row_dim L + R
  bool ue8m0 = false;         // fp8_ds_mla: power-of-two scales
};

// The V3.2 indexer's keys: LayerNorm (eps 1e-6, weight and bias), rotation, optional Hadamard, quantise, insert: MLA 11.1-11.4, 11.9.
struct IndexerKeyInsertParams {
  TensorView k{};             // bf16 [T, Di], before the norm
  TensorView weight{};        // f32 [Di]
  TensorView bias{};          // f32 [Di]
  float eps = 1e-6f;
  TensorView positions{};     // i64 [T]
  TensorView cos_sin{};       // f32 [max_positions, R]; absent: no rotation
  RopePairing pairing = RopePairing::half_split;
  RopeLanes lanes = RopeLanes::first;
  bool hadamard = false;
  TensorView slot_mapping{};  // i64 [N_ins], N_ins <= T
  PagedCache cache{};         // indexer_fp8 or bf16; row_dim Di
};

}  // namespace strata
