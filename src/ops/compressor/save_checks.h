// Checks of the arguments of save_partial_states, also for compress_norm_rope_store with the saves as its prologue.
#pragma once

#include "ops/kv_insert/row_checks.h"
#include "strata/ops/compressor.h"

namespace strata::ops {

inline void check_saves(ParamCheck& c, const SavePartialStatesParams& p) {
  c.view("kv_score", p.kv_score, DType::f32, {kAny, kAny});
  const int64_t tokens = p.kv_score.shape[0], width = p.kv_score.shape[1];
  c.require(width >= 2 && width % 2 == 0, "kv_score must have an even number of columns (kv, then score), has {}", width);
  c.view("ape", p.ape, DType::f32, {kAny, width / 2});
  c.require(p.ape.shape[0] >= 1, "ape must have one row per position of a window, has {}", p.ape.shape[0]);
  c.view("positions", p.positions, DType::i64, {tokens});
  c.view("state_slots", p.state_slots, DType::i64, {tokens});
  check_rows(c, "state", p.state, {KvFormat::state_f32}, width);
  c.values_in("state_slots", p.state_slots, 0, p.state.num_slots(), true);
  if (!host_visible(p.positions) || !host_visible(p.state_slots)) return;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t position = p.positions.ptr<int64_t>()[t];
    c.require(p.state_slots.ptr<int64_t>()[t] < 0 || position >= 0,
              "positions[{}] must not be negative where state_slots has a slot, is {}", t, position);
  }
}

}  // namespace strata::ops
