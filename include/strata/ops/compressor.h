// The KV compressor: V4 specification 9. Ratio 4 overlaps two windows (coff = 2), ratio 128 does not (coff = 1).
#pragma once

#include <optional>

#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// Errors of both: invalid_argument for shapes, dtypes, formats, devices; on host-visible memory also for slots past their cache, positions
// below 0 or outside the table, state pages that are missing, and a step to save in another order than below, before anything is written.

// state row state_slots[t] = [ kv[t] | score[t] + ape[positions[t] % ratio] ] for state_slots[t] >= 0: V4 9.2 "save" (save_partial_states).
struct SavePartialStatesParams {
  TensorView kv_score{};     // f32 [T, 2*coff*d], rows contiguous: kv in the first half, score in the second
  TensorView ape{};          // f32 [ratio, coff*d]
  TensorView positions{};    // i64 [T]
  TensorView state_slots{};  // i64 [T]; negative: skip
  PagedCache state{};        // state_f32, row_dim 2*coff*d
};

// A prologue: the saves of the step, as the op save_partial_states does them into the call's state at its state_slots.
struct StateSave {
  TensorView kv_score{};  // f32 [T, 2*coff*d], rows contiguous
  TensorView ape{};       // f32 [ratio, coff*d]
};

// For every token t with state_slots[t] >= 0, (positions[t] + 1) % ratio == 0 and out_slots[t] >= 0: pool the last coff*ratio
// state rows of its request, RMSNorm, rotate by position (p / ratio) * ratio, quantise, insert at out_slots[t]: V4 9.1 and 9.2
// "compress" (compress_norm_rope_store). All saves of the step come before it. State table entries below 0 are read as 0; rows at negative
// positions are not read.
// With save_prologue, of the tokens that have a state slot requests ascend, a request's tokens stand as far from each other as their
// positions, and the slot is where block_table has the position. No request reads a row that the step saves for another request.
struct CompressNormRopeStoreParams {
  std::optional<StateSave> save_prologue{};  // absent: the step's rows are saved already
  PagedCache state{};                        // state_f32, row_dim 2*coff*d
  TensorView block_table{};                  // i32 [R, max_blocks] of the state group
  TensorView token_to_req{};                 // i32 [T]
  TensorView positions{};                    // i64 [T]
  TensorView state_slots{};                  // i64 [T]; negative: skip
  TensorView out_slots{};                    // i64 [T]; negative: skip
  int32_t ratio = 4;                         // 4 (overlapping) or 128
  TensorView norm_weight{};                  // f32 [d], d = 512 or 128
  float eps = 1e-6f;
  TensorView cos_sin{};   // f32 [max_positions, R]: rotary lanes are the last R of d
  PagedCache cache{};     // d = 512: fp8_ds_mla_v4, bf16, fp8_tensor; d = 128: indexer_fp8, indexer_mxfp4, bf16
  bool hadamard = false;  // d = 128 only: multiply by H128/sqrt(128) after the rotation, before quantising (10.5)
};

}  // namespace strata
