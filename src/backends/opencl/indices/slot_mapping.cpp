#include "backends/opencl/indices/index_rows.h"
#include "backends/opencl/opencl_ops.h"

namespace strata::opencl {
namespace {

void run(const SlotMappingParams& p, Variant variant, const ExecutionContext& context) {
  const int64_t tokens = p.positions.shape[0];
  const SlotMappingCall call{.tokens = token_pages(p.token_to_req, p.is_valid_token, p.block_table),
                             .positions = address(p.positions),
                             .slot_mapping = address(p.slot_mapping),
                             .num_tokens = tokens,
                             .ratio = p.ratio,
                             .page_size = divisor_of(p.page_size)};
  launch(context, {"indices", variant, "slot_mapping"}, call,
         {.groups = {static_cast<size_t>(ceil_div(tokens, kSlotItems)), 1, 1}, .items = {kSlotItems, 1, 1}});
}

}  // namespace

std::vector<Implementation<SlotMappingParams>> slot_mapping() { return {implementation<SlotMappingParams>(Flavour::basic, {.run = run})}; }

}  // namespace strata::opencl
