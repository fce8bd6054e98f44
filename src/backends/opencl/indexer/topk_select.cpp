#include "backends/opencl/indexer/call.h"
#include "backends/opencl/indexer/launch.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/alignment.h"

namespace strata::opencl {

void launch_topk_select(const TopkSelectParams& p, Variant variant, const ExecutionContext& context) {
  const TopkSelectCall call{.logits = address(p.logits),
                            .lengths = address(p.lengths),
                            .topk_indices = address(p.topk_indices),
                            .logits_stride = p.logits.stride[0],
                            .topk_stride = p.topk_indices.stride[0],
                            .k = static_cast<int32_t>(p.topk_indices.shape[1]),
                            .is_aligned = rows_begin_at(p.logits, 16)};
  launch(context, {"topk_select", variant, "topk_select"}, call,
         {.groups = {static_cast<size_t>(p.topk_indices.shape[0]), 1, 1}, .items = {kSelectItems, 1, 1}});
}

namespace {

Support supports(const TopkSelectParams& p, const Capabilities&) { return supports_selection(p.topk_indices.shape[1]); }

}  // namespace

std::vector<Implementation<TopkSelectParams>> topk_select() {
  return {implementation<TopkSelectParams>(Flavour::basic, {.supports = supports, .run = launch_topk_select})};
}

}  // namespace strata::opencl
