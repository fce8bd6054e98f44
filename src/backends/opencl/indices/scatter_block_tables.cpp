#include "backends/opencl/indices/index_rows.h"
#include "backends/opencl/opencl_ops.h"

namespace strata::opencl {
namespace {

void run(const ScatterBlockTablesParams& p, Variant variant, const ExecutionContext& context) {
  const ScatterBlockTablesCall call{.entries = address(p.entries),
                                    .segments = address(p.segments),
                                    .block_table = address(p.block_table),
                                    .table_stride = p.block_table.stride[0]};
  launch(context, {"indices", variant, "scatter_block_tables"}, call,
         {.groups = {static_cast<size_t>(p.segments.shape[0]), 1, 1}, .items = {kScatterItems, 1, 1}});
}

}  // namespace

std::vector<Implementation<ScatterBlockTablesParams>> scatter_block_tables() {
  return {implementation<ScatterBlockTablesParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
