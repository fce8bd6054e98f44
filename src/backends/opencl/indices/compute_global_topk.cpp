#include "backends/opencl/indices/index_rows.h"
#include "backends/opencl/opencl_ops.h"

namespace strata::opencl {
namespace {

Support supports(const ComputeGlobalTopkParams& p, const Capabilities&) { return supports_width(p.global_indices); }

void run(const ComputeGlobalTopkParams& p, Variant variant, const ExecutionContext& context) {
  const ComputeGlobalTopkCall call{
      .tokens = token_pages(p.token_to_req, p.is_valid_token, p.block_table),
      .rows = index_rows(p.global_indices, p.lens, has_whole_runs(p.topk_indices, p.topk_indices.shape[1])),
      .topk_indices = address(p.topk_indices),
      .topk_stride = p.topk_indices.stride[0],
      .max_blocks = static_cast<int32_t>(std::min<int64_t>(p.block_table.shape[1], std::numeric_limits<int32_t>::max())),
      .page_size = divisor_of(p.page_size)};
  launch(context, {"indices", variant, "compute_global_topk"}, call, range_of(call.rows));
}

}  // namespace

std::vector<Implementation<ComputeGlobalTopkParams>> compute_global_topk() {
  return {implementation<ComputeGlobalTopkParams>(Flavour::basic, {.supports = supports, .run = run})};
}

}  // namespace strata::opencl
