#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"

namespace strata::ops {
namespace {

void check(const SavePartialStatesParams& p, DeviceId device) {
  ParamCheck c("save_partial_states", device);
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

}  // namespace

Op<SavePartialStatesParams> make_save_partial_states() {
  return {"save_partial_states", check, join(cuda::save_partial_states(), cpu::save_partial_states(), reference::save_partial_states())};
}

}  // namespace strata::ops
