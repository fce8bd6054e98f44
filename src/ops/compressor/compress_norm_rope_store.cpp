#include <algorithm>
#include <limits>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "contracts/compressor_window.h"
#include "ops/compressor/fusions.h"
#include "ops/compressor/save_checks.h"
#include "ops/factories.h"

namespace strata::ops {
namespace {

// For every token that completes an entry: its rows, its rotary position and its slot exist.
void check_values(ParamCheck& c, const CompressNormRopeStoreParams& p) {
  if (!host_visible(p.positions) || !host_visible(p.state_slots) || !host_visible(p.out_slots)) return;
  if (!host_visible(p.token_to_req) || !host_visible(p.block_table)) return;
  for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
    const int64_t position = p.positions.ptr<int64_t>()[t];
    const int64_t slot = p.out_slots.ptr<int64_t>()[t];
    if (p.state_slots.ptr<int64_t>()[t] < 0 || slot < 0) continue;
    c.require(position < std::numeric_limits<int64_t>::max(), "positions[{}] must be below 2^63 - 1, is {}", t, position);
    if (!completes_entry(position, p.ratio)) continue;
    c.require(slot < p.cache.num_slots(), "out_slots[{}] must be in [0, {}), is {}", t, p.cache.num_slots(), slot);
    const CompressorWindow window = compressor_window(position, p.ratio);
    c.require(window.rope_position < p.cos_sin.shape[0], "positions[{}] must have its window's first position in [0, {}), is {}", t,
              p.cos_sin.shape[0], position);
    const int64_t request = p.token_to_req.ptr<int32_t>()[t];
    c.require(request >= 0 && request < p.block_table.shape[0], "token_to_req[{}] must be in [0, {}), is {}", t, p.block_table.shape[0],
              request);
    const int64_t end = (window.end + p.state.page_size - 1) / p.state.page_size;
    c.require(end <= p.block_table.shape[1], "block_table must have at least {} blocks for position {} of request {}, has {}", end,
              position, request, p.block_table.shape[1]);
    for (int64_t block = window.begin / p.state.page_size; block < end; ++block) {
      const int64_t page = std::max(p.block_table.row<int32_t>(request)[block], 0);
      c.require(page < p.state.num_pages, "block_table[{}, {}] must be below {}, is {}", request, block, p.state.num_pages, page);
    }
  }
}

// With a prologue: the saves are valid, and a token's position determines which row it has saved.
void check_step(ParamCheck& c, const CompressNormRopeStoreParams& p, DeviceId device) {
  if (!p.save_prologue) return;
  ParamCheck prologue("compress_norm_rope_store: save_prologue", device);
  prologue.view("kv_score", p.save_prologue->kv_score, DType::f32, {p.positions.shape[0], p.state.row_dim});
  prologue.view("ape", p.save_prologue->ape, DType::f32, {p.ratio, p.state.row_dim / 2});
  check_saves(prologue, saves_of(p));
  if (!host_visible(p.positions) || !host_visible(p.state_slots) || !host_visible(p.token_to_req)) return;
  const int32_t* const requests = p.token_to_req.ptr<int32_t>();
  const int64_t *const positions = p.positions.ptr<int64_t>(), *const slots = p.state_slots.ptr<int64_t>();
  int64_t before = -1;  // the last token with a slot
  for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
    if (slots[t] < 0) continue;
    if (before >= 0) {
      c.require(requests[t] >= requests[before], "token_to_req[{}] must be {} at least, as of the token saved before, is {}", t,
                requests[before], requests[t]);
      const int64_t step = positions[t] - positions[before];
      c.require(requests[t] > requests[before] || step == t - before, "positions[{}] must be {} more than positions[{}], is {} more", t,
                t - before, before, step);
    }
    before = t;
    const int64_t block = positions[t] / p.state.page_size;
    if (!host_visible(p.block_table) || requests[t] < 0 || requests[t] >= p.block_table.shape[0] || block >= p.block_table.shape[1])
      continue;
    const int64_t page = std::max(p.block_table.row<int32_t>(requests[t])[block], 0);
    const int64_t place = page * p.state.page_size + positions[t] % p.state.page_size;
    c.require(slots[t] == place, "state_slots[{}] must be {}, where block_table has the position, is {}", t, place, slots[t]);
  }
}

void check(const CompressNormRopeStoreParams& p, DeviceId device) {
  ParamCheck c("compress_norm_rope_store", device);
  c.require(p.ratio == 4 || p.ratio == 128, "ratio must be 4 or 128, is {}", p.ratio);
  check_eps(c, p.eps);
  c.view("norm_weight", p.norm_weight, DType::f32, {kAny});
  const int64_t d = p.norm_weight.shape[0];
  c.require(d == 128 || d == 512, "norm_weight must have 128 or 512 values, has {}", d);
  check_rows(c, "state", p.state, {KvFormat::state_f32}, 2 * state_width_factor(p.ratio) * d);
  if (d == 512) {
    check_rows(c, "cache", p.cache, {KvFormat::fp8_ds_mla_v4, KvFormat::bf16, KvFormat::fp8_tensor}, d);
  } else {
    check_rows(c, "cache", p.cache, {KvFormat::indexer_fp8, KvFormat::indexer_mxfp4, KvFormat::bf16}, d);
  }
  c.require(!p.hadamard || d == 128, "hadamard must be false for rows of {} values, is true", d);
  c.view("token_to_req", p.token_to_req, DType::i32, {kAny});
  const int64_t tokens = p.token_to_req.shape[0];
  check_rotary_views(c, p.positions, p.cos_sin, tokens, d);
  check_rotary_lanes(c, p.cache, p.cos_sin.shape[1]);
  c.view("state_slots", p.state_slots, DType::i64, {tokens});
  c.view("out_slots", p.out_slots, DType::i64, {tokens});
  c.view("block_table", p.block_table, DType::i32, {kAny, kAny});
  check_step(c, p, device);
  check_values(c, p);
}

}  // namespace

Op<CompressNormRopeStoreParams> make_compress_norm_rope_store() {
  return {"compress_norm_rope_store", check,
          join(cuda::compress_norm_rope_store(), opencl::compress_norm_rope_store(), cpu::compress_norm_rope_store(),
               reference::compress_norm_rope_store()),
          with_compress_fusions};
}

}  // namespace strata::ops
