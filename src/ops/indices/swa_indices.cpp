#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indices/value_checks.h"

namespace strata::ops {
namespace {

void check(const SwaIndicesParams& p, DeviceId device) {
  ParamCheck c("swa_indices", device);
  const PagedTokens tokens{p.positions, p.token_to_req, p.is_valid_token, p.block_table, p.page_size};
  tokens.check_views(c);
  c.require(p.window >= 1, "window must be at least 1, is {}", p.window);
  c.view("indices", p.indices, DType::i32, {p.positions.shape[0], p.window});
  check_output(c, "indices", p.indices);
  c.view("lens", p.lens, DType::i32, {p.positions.shape[0]});
  if (!tokens.host_visible()) return;
  for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
    if (!tokens.valid(t)) continue;
    const int64_t position = tokens.position(c, t);
    const int64_t start = std::max<int64_t>(position - p.window + 1, 0);
    check_blocks(c, t, p.token_to_req, p.block_table, start / p.page_size, position / p.page_size + 1, kMaxIndices / p.page_size);
  }
}

}  // namespace

Op<SwaIndicesParams> make_swa_indices() {
  return {"swa_indices", check, join(cuda::swa_indices(), opencl::swa_indices(), cpu::swa_indices(), reference::swa_indices())};
}

}  // namespace strata::ops
