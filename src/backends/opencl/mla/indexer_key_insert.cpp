#include <cmath>

#include "backends/opencl/mla/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

void run(const IndexerKeyInsertParams& p, Variant variant, const ExecutionContext& context) {
  const int64_t dim = p.k.shape[1], rotary = p.cos_sin.present() ? p.cos_sin.shape[1] : 0;
  const bool is_narrow = dim <= kNarrowKeyItems * 8;
  const IndexerKeyCall call{.k = address(p.k),
                            .weight = address(p.weight),
                            .bias = address(p.bias),
                            .slots = address(p.slot_mapping),
                            .positions = address(p.positions),
                            .cos_sin = address(p.cos_sin),
                            .k_stride = p.k.stride[0],
                            .cos_sin_stride = p.cos_sin.stride[0],
                            .num_slots = p.slot_mapping.shape[0],
                            .cache = cache_view(p.cache),
                            .first_rotary = static_cast<int32_t>(p.rope_slice == RopeSlice::last ? dim - rotary : 0),
                            .rotary = static_cast<int32_t>(rotary),
                            .is_half_split = p.pairing == RopePairing::half_split,
                            .eps = p.eps,
                            .hadamard_scale = p.hadamard ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))) : 0.0f};
  const int64_t rows = is_narrow ? kKeyItems / kNarrowKeyItems : 1;  // of a group
  launch(context, {"indexer_key", variant, is_narrow ? "insert_narrow_key" : "insert_wide_key"}, call,
         {.groups = {static_cast<size_t>(ceil_div(call.num_slots, rows)), 1, 1}, .items = {kKeyItems, 1, 1}});
}

}  // namespace

std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert() {
  return {implementation<IndexerKeyInsertParams>(Flavour::subgroup, {.run = run}),
          implementation<IndexerKeyInsertParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
