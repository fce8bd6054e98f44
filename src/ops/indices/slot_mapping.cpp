#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indices/value_checks.h"

namespace strata::ops {
namespace {

void check(const SlotMappingParams& p, DeviceId device) {
  ParamCheck c("slot_mapping", device);
  const PagedTokens tokens{p.positions, p.token_to_req, p.is_valid_token, p.block_table, p.page_size};
  tokens.check_views(c);
  c.require(p.ratio >= 1, "ratio must be at least 1, is {}", p.ratio);
  c.view("slot_mapping", p.slot_mapping, DType::i64, {p.positions.shape[0]});
  if (!tokens.host_visible()) return;
  for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
    if (!tokens.valid(t)) continue;
    const int64_t position = tokens.position(c, t);
    if ((position + 1) % p.ratio != 0) continue;
    const int64_t block = position / p.ratio / p.page_size;
    check_blocks(c, t, p.token_to_req, p.block_table, block, block + 1, kMaxIndices);
  }
}

}  // namespace

Op<SlotMappingParams> make_slot_mapping() {
  return {"slot_mapping", check, join(cuda::slot_mapping(), opencl::slot_mapping(), cpu::slot_mapping(), reference::slot_mapping())};
}

}  // namespace strata::ops
