#include "backends/opencl/indices/index_rows.h"
#include "backends/opencl/opencl_ops.h"

namespace strata::opencl {
namespace {

Support supports(const CompressedIndicesParams& p, const Capabilities&) { return supports_width(p.indices); }

void run(const CompressedIndicesParams& p, Variant variant, const ExecutionContext& context) {
  const CompressedIndicesCall call{.tokens = token_pages(p.token_to_req, p.is_valid_token, p.block_table),
                                   .rows = index_rows(p.indices, p.lens, true),
                                   .positions = address(p.positions),
                                   .page_size = divisor_of(p.block_table.present() ? p.page_size : 1),
                                   .ratio = divisor_of(p.ratio)};
  launch(context, {"indices", variant, "compressed_indices"}, call, range_of(call.rows));
}

}  // namespace

std::vector<Implementation<CompressedIndicesParams>> compressed_indices() {
  return {implementation<CompressedIndicesParams>(Flavour::basic, {.supports = supports, .run = run})};
}

}  // namespace strata::opencl
