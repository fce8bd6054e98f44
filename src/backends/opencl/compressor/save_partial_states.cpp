#include "backends/opencl/compressor/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

void run(const SavePartialStatesParams& p, Variant, const ExecutionContext& context) {
  const int64_t half = p.ape.shape[1], items = ceil_div(half, 4), rows = kSaveItems / items;
  const bool is_aligned = half % 4 == 0 && rows_begin_at(p.kv_score, 16) && rows_begin_at(p.ape, 16) && pages_begin_at(p.state, 16);
  const SaveCall call{.kv_score = address(p.kv_score),
                      .ape = address(p.ape),
                      .positions = address(p.positions),
                      .slots = address(p.state_slots),
                      .kv_score_stride = p.kv_score.stride[0],
                      .ape_stride = p.ape.stride[0],
                      .num_tokens = p.kv_score.shape[0],
                      .state = cache_view(p.state),
                      .ratio = static_cast<int32_t>(p.ape.shape[0]),
                      .half_columns = static_cast<int32_t>(half),
                      .items = static_cast<int32_t>(items),
                      .rows = static_cast<int32_t>(rows),
                      .is_aligned = is_aligned};
  launch(context, {"save_states", Variant::basic, "save_states"}, call,
         {.groups = {static_cast<size_t>(ceil_div(call.num_tokens, rows)), 1, 1}, .items = {kSaveItems, 1, 1}});
}

}  // namespace

std::vector<Implementation<SavePartialStatesParams>> save_partial_states() {
  return {implementation<SavePartialStatesParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
