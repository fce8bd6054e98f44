#include "backends/opencl/indices/index_rows.h"
#include "backends/opencl/opencl_ops.h"

namespace strata::opencl {
namespace {

Support supports(const CombineTopkSwaParams& p, const Capabilities&) { return supports_width(p.combined_indices); }

void run(const CombineTopkSwaParams& p, Variant variant, const ExecutionContext& context) {
  const CombineTopkSwaCall call{.rows = index_rows(p.combined_indices, p.combined_lens, has_whole_runs(p.topk_indices, p.top_k)),
                                .topk_indices = address(p.topk_indices),
                                .query_start_loc = address(p.query_start_loc),
                                .seq_lens = address(p.seq_lens),
                                .gather_lens = address(p.gather_lens),
                                .topk_stride = p.topk_indices.stride[0],
                                .m = p.m,
                                .n = p.n,
                                .num_requests = static_cast<int32_t>(p.seq_lens.shape[0]),
                                .window = p.window,
                                .top_k = p.top_k,
                                .ratio = divisor_of(p.ratio)};
  launch(context, {"indices", variant, "combine_topk_swa"}, call, range_of(call.rows));
}

}  // namespace

std::vector<Implementation<CombineTopkSwaParams>> combine_topk_swa() {
  return {implementation<CombineTopkSwaParams>(Flavour::basic, {.supports = supports, .run = run})};
}

}  // namespace strata::opencl
