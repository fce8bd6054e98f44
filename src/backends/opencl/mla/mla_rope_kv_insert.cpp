#include "backends/opencl/kv_insert/insert_rows.h"
#include "backends/opencl/mla/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

void rotate(const MlaRopeKvInsertParams& p, const ExecutionContext& context) {
  const int64_t heads = p.q.shape[1], rotary = p.k_pe.shape[1], nope = p.q.shape[2] - rotary;
  const int64_t nope_runs = p.llama_4_scaling.present() ? ceil_div(nope, 8) : 0, runs = nope_runs + ceil_div(rotary, 8);
  const int64_t groups = ceil_div((heads + 1) * runs, kMlaRopeItems);
  const MlaRopeCall call{.q = address(p.q),
                         .k_pe = address(p.k_pe),
                         .q_pe_out = address(p.q_pe_out),
                         .positions = address(p.positions),
                         .cos_sin = address(p.cos_sin),
                         .scaling = address(p.llama_4_scaling),
                         .q_stride = {p.q.stride[0], p.q.stride[1]},
                         .k_pe_stride = p.k_pe.stride[0],
                         .q_pe_out_stride = {p.q_pe_out.stride[0], p.q_pe_out.stride[1]},
                         .cos_sin_stride = p.cos_sin.stride[0],
                         .num_q_pe_out = p.q_pe_out.present() ? p.q_pe_out.shape[0] : 0,
                         .groups = static_cast<int32_t>(groups),
                         .heads = static_cast<int32_t>(heads),
                         .nope = static_cast<int32_t>(nope),
                         .rotary = static_cast<int32_t>(rotary),
                         .nope_runs = static_cast<int32_t>(nope_runs),
                         .runs = static_cast<int32_t>(runs)};
  if (call.cos_sin == 0 && call.scaling == 0 && call.num_q_pe_out == 0) return;
  launch(context, {"mla_rope", Variant::basic, "mla_rope"}, call,
         {.groups = {static_cast<size_t>(p.q.shape[0] * groups), 1, 1}, .items = {kMlaRopeItems, 1, 1}});
}

// The keys are rotated in place, so they are inserted afterwards.
void run(const MlaRopeKvInsertParams& p, Variant, const ExecutionContext& context) {
  rotate(p, context);
  if (!p.slot_mapping.present()) return;
  insert_rows({.slots = p.slot_mapping, .first = p.c, .second = p.k_pe, .cache = p.cache, .is_ue8m0 = p.ue8m0, .is_divided = true},
              context);
}

}  // namespace

std::vector<Implementation<MlaRopeKvInsertParams>> mla_rope_kv_insert() {
  return {implementation<MlaRopeKvInsertParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
