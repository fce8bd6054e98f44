#include "backends/opencl/merge_attn_states/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

void run(const MergeAttnStatesParams& p, Variant variant, const ExecutionContext& context) {
  const int64_t heads = p.o.shape[2], dim = p.o.shape[3], rows = p.o.shape[1] * heads;
  const bool from_f32 = p.o.dtype == DType::f32;
  const int64_t access = from_f32 ? 4 : 8;  // values in 16 bytes
  const bool is_wide = dim % access == 0 && rows_begin_at(p.o, 16) && rows_begin_at(p.out, 16);
  const int64_t of_item = is_wide ? kMergeValues : kMergeValues / access;  // values of a split per item
  int log2_row_items = 0;
  while (int64_t{1} << log2_row_items < kMergeItems && of_item << log2_row_items < dim) ++log2_row_items;
  const MergeCall call{.o = address(p.o),
                       .lse = address(p.lse),
                       .out = address(p.out),
                       .sink = address(p.attn_sink),
                       .lse_out = address(p.lse_out),
                       .o_stride = {p.o.stride[0], p.o.stride[1], p.o.stride[2]},
                       .lse_stride = {p.lse.stride[0], p.lse.stride[1], p.lse.stride[2]},
                       .out_stride = {p.out.stride[0], p.out.stride[1]},
                       .lse_out_stride = {p.lse_out.stride[0], p.lse_out.stride[1]},
                       .rows = rows,
                       .empty_lse = p.empty_lse,
                       .splits = static_cast<int32_t>(p.o.shape[0]),
                       .dim = static_cast<int32_t>(dim),
                       .log2_row_items = log2_row_items,
                       .is_f32 = p.out.dtype == DType::f32,
                       .heads = divisor_of(heads == 0 ? 1 : heads)};
  const char* kernel = from_f32 ? (is_wide ? "merge_f32" : "merge_f32_any") : (is_wide ? "merge_bf16" : "merge_bf16_any");
  launch(context, {"merge_attn_states", variant, kernel}, call,
         {.groups = {static_cast<size_t>(ceil_div(rows, int64_t{kMergeItems} >> log2_row_items)), 1, 1}, .items = {kMergeItems, 1, 1}});
}

}  // namespace

std::vector<Implementation<MergeAttnStatesParams>> merge_attn_states() {
  return {implementation<MergeAttnStatesParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
