#include "backends/opencl/kv_insert/call.h"
#include "backends/opencl/kv_insert/insert_rows.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

void norm_queries(const QNormRopeKvInsertParams& p, Variant variant, const ExecutionContext& context) {
  const int64_t dim = p.q.shape[2], rotary = p.cos_sin.shape[1], groups = ceil_div(p.q_out.shape[1], kQueryHeads);
  const QueryCall call{.q = address(p.q),
                       .out = address(p.q_out),
                       .positions = address(p.positions),
                       .cos_sin = address(p.cos_sin),
                       .q_stride = {p.q.stride[0], p.q.stride[1]},
                       .out_stride = {p.q_out.stride[0], p.q_out.stride[1]},
                       .cos_sin_stride = p.cos_sin.stride[0],
                       .groups = static_cast<int32_t>(groups),
                       .heads = static_cast<int32_t>(p.q.shape[1]),
                       .padded_heads = static_cast<int32_t>(p.q_out.shape[1]),
                       .dim = static_cast<int32_t>(dim),
                       .rotary = static_cast<int32_t>(rotary),
                       .shift = static_cast<int32_t>((dim - rotary) % 2),
                       .is_aligned = dim % 8 == 0 && rows_begin_at(p.q, 16),
                       .is_e4m3 = p.q_out.dtype == DType::e4m3,
                       .eps = p.eps,
                       .scale_inv = p.q_scale_inv};
  launch(context, {"query_norm", variant, "query_norm"}, call,
         {.groups = {static_cast<size_t>(p.q.shape[0] * groups), 1, 1}, .items = {kQueryItems, 1, 1}});
}

void run(const QNormRopeKvInsertParams& p, Variant variant, const ExecutionContext& context) {
  norm_queries(p, variant, context);
  if (!p.slot_mapping.present()) return;
  insert_rows({.slots = p.slot_mapping, .first = p.kv, .positions = p.positions, .cos_sin = p.cos_sin, .cache = p.cache}, context);
}

}  // namespace

std::vector<Implementation<QNormRopeKvInsertParams>> qnorm_rope_kv_insert() {
  return {implementation<QNormRopeKvInsertParams>(Flavour::subgroup, {.run = run}),
          implementation<QNormRopeKvInsertParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
