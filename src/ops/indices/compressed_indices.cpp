#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indices/value_checks.h"

namespace strata::ops {
namespace {

void check(const CompressedIndicesParams& p, DeviceId device) {
  ParamCheck c("compressed_indices", device);
  const PagedTokens tokens{p.positions, p.token_to_req, p.is_valid_token, p.block_table, p.page_size};
  c.view("positions", p.positions, DType::i64, {kAny});
  const int64_t num_tokens = p.positions.shape[0];
  if (p.block_table.present()) {
    tokens.check_views(c);
  } else {
    c.optional("token_to_req", p.token_to_req, DType::i32, {num_tokens});
    c.optional("is_valid_token", p.is_valid_token, DType::u8, {num_tokens});
  }
  c.require(p.ratio >= 1, "ratio must be at least 1, is {}", p.ratio);
  c.view("indices", p.indices, DType::i32, {num_tokens, kAny});
  check_output(c, "indices", p.indices);
  c.view("lens", p.lens, DType::i32, {num_tokens});
  if (!host_visible(p.positions) || (p.is_valid_token.present() && !host_visible(p.is_valid_token))) return;
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (!tokens.valid(t)) continue;
    const int64_t position = tokens.position(c, t);
    if (!p.block_table.present() || !tokens.host_visible()) continue;
    const int64_t entries = std::min((position + 1) / p.ratio, p.indices.shape[1]);
    check_blocks(c, t, p.token_to_req, p.block_table, 0, (entries + p.page_size - 1) / p.page_size, kMaxIndices / p.page_size);
  }
}

}  // namespace

Op<CompressedIndicesParams> make_compressed_indices() {
  return {"compressed_indices", check,
          join(cuda::compressed_indices(), opencl::compressed_indices(), cpu::compressed_indices(), reference::compressed_indices())};
}

}  // namespace strata::ops
