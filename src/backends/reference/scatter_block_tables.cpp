#include <algorithm>

#include "backends/reference/reference.h"

namespace strata::reference {
namespace {

void run(const ScatterBlockTablesParams& p) {
  for (int64_t s = 0; s < p.segments.shape[0]; ++s) {
    const int32_t* segment = p.segments.row<int32_t>(s);
    std::copy_n(p.entries.ptr<int32_t>() + segment[2], segment[3], p.block_table.row<int32_t>(segment[0]) + segment[1]);
  }
}

}  // namespace

std::vector<Implementation<ScatterBlockTablesParams>> scatter_block_tables() { return always(run); }

}  // namespace strata::reference
