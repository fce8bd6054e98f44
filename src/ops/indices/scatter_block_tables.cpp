#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indices/value_checks.h"

namespace strata::ops {
namespace {

void check(const ScatterBlockTablesParams& p, DeviceId device) {
  ParamCheck c("scatter_block_tables", device);
  c.view("entries", p.entries, DType::i32, {kAny});
  c.view("segments", p.segments, DType::i32, {kAny, 4});
  c.contiguous("segments", p.segments);
  c.view("block_table", p.block_table, DType::i32, {kAny, kAny});
  check_output(c, "block_table", p.block_table);
  if (!host_visible(p.segments)) return;
  for (int64_t s = 0; s < p.segments.shape[0]; ++s) {
    const int32_t* segment = p.segments.row<int32_t>(s);
    const int64_t row = segment[0], column = segment[1], first = segment[2], count = segment[3];
    c.require(count >= 0, "segments[{}] must have a count that is not negative, has {}", s, count);
    c.require(row >= 0 && row < p.block_table.shape[0], "segments[{}] must have a row in [0, {}), has {}", s, p.block_table.shape[0], row);
    c.require(column >= 0 && column + count <= p.block_table.shape[1], "segments[{}] must have columns in [0, {}), has [{}, {})", s,
              p.block_table.shape[1], column, column + count);
    c.require(first >= 0 && first + count <= p.entries.shape[0], "segments[{}] must have entries in [0, {}), has [{}, {})", s,
              p.entries.shape[0], first, first + count);
  }
}

}  // namespace

Op<ScatterBlockTablesParams> make_scatter_block_tables() {
  return {"scatter_block_tables", check,
          join(cuda::scatter_block_tables(), opencl::scatter_block_tables(), reference::scatter_block_tables())};
}

}  // namespace strata::ops
