#include "backends/opencl/indices/index_rows.h"
#include "backends/opencl/opencl_ops.h"

namespace strata::opencl {
namespace {

Support supports(const SwaIndicesParams& p, const Capabilities&) { return supports_width(p.indices); }

void run(const SwaIndicesParams& p, Variant variant, const ExecutionContext& context) {
  const SwaIndicesCall call{.tokens = token_pages(p.token_to_req, p.is_valid_token, p.block_table),
                            .rows = index_rows(p.indices, p.lens, true),
                            .positions = address(p.positions),
                            .page_size = divisor_of(p.page_size)};
  launch(context, {"indices", variant, "swa_indices"}, call, range_of(call.rows));
}

}  // namespace

std::vector<Implementation<SwaIndicesParams>> swa_indices() {
  return {implementation<SwaIndicesParams>(Flavour::basic, {.supports = supports, .run = run})};
}

}  // namespace strata::opencl
