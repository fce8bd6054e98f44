// The KV compressor. V4 specification 9. Ratio 4 pools two overlapping windows (coff = 2), ratio 128 pools one (coff = 1).
#pragma once

#include <optional>

#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// Errors of both ops: invalid_argument for shapes, dtypes, formats, devices. On host-visible memory also for slots past their cache,
// positions below 0 or outside the table, missing state pages, and saves in another order than described below; then nothing has been
// written.

// save_partial_states, V4 9.2 "save". For every token t with state_slots[t] >= 0:
//   state row state_slots[t] = [ kv[t] | score[t] + ape[positions[t] % ratio] ].
struct SavePartialStatesParams {
  TensorView kv_score{};     // f32 [T, 2*coff*d], rows contiguous: kv in the first half of a row, score in the second
  TensorView ape{};          // f32 [ratio, coff*d]
  TensorView positions{};    // i64 [T]
  TensorView state_slots{};  // i64 [T]; negative: skip
  PagedCache state{};        // state_f32, row_dim 2*coff*d
};

// Prologue: the saves of the step, as the op save_partial_states writes them to the call's state at its state_slots.
struct StateSave {
  TensorView kv_score{};  // f32 [T, 2*coff*d], rows contiguous
  TensorView ape{};       // f32 [ratio, coff*d]
};

// compress_norm_rope_store, V4 9.1 and 9.2 "compress". For every token t with state_slots[t] >= 0, (positions[t] + 1) % ratio == 0 and
// out_slots[t] >= 0:
//   pool the last coff*ratio state rows of the token's request, apply RMSNorm, rotate by position (p / ratio) * ratio, quantise, insert at
//     out_slots[t].
// All saves of the step must precede the call. State rows whose table entry is below 0 count as 0; rows at negative positions are not read.
// With save_prologue, tokens that have a state slot are ordered by request. Within a request their distances equal those of their
// positions, and each slot is the one that block_table gives for the position. No request reads a row that the step saves for another
// request.
struct CompressNormRopeStoreParams {
  std::optional<StateSave> save_prologue{};  // absent: the step's rows are already saved
  PagedCache state{};                        // state_f32, row_dim 2*coff*d
  TensorView block_table{};                  // i32 [R, max_blocks] of the state group
  TensorView token_to_req{};                 // i32 [T]
  TensorView positions{};                    // i64 [T]
  TensorView state_slots{};                  // i64 [T]; negative: skip
  TensorView out_slots{};                    // i64 [T]; negative: skip
  int32_t ratio = 4;                         // 4 (overlapping) or 128
  TensorView norm_weight{};                  // f32 [d], d = 512 or 128
  float eps = 1e-6f;                         // added to the mean square in RMSNorm
  TensorView cos_sin{};                      // f32 [max_positions, R]: the last R of d dimensions are rotated
  PagedCache cache{};                        // d = 512: fp8_ds_mla_v4, bf16, fp8_tensor; d = 128: indexer_fp8, indexer_mxfp4, bf16
  bool hadamard = false;                     // d = 128 only: multiply by H128/sqrt(128) after the rotation, before quantising (10.5)
};

}  // namespace strata
