#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indices/value_checks.h"

namespace strata::ops {
namespace {

void check(const ComputeGlobalTopkParams& p, DeviceId device) {
  ParamCheck c("compute_global_topk", device);
  c.view("topk_indices", p.topk_indices, DType::i32, {kAny, kAny});
  const int64_t tokens = p.topk_indices.shape[0];
  const int64_t k = p.topk_indices.shape[1];
  c.view("token_to_req", p.token_to_req, DType::i32, {tokens});
  c.optional("is_valid_token", p.is_valid_token, DType::u8, {tokens});
  c.view("block_table", p.block_table, DType::i32, {kAny, kAny});
  c.require(p.page_size > 0, "page_size must be positive, is {}", p.page_size);
  c.view("global_indices", p.global_indices, DType::i32, {tokens, k});
  check_output(c, "global_indices", p.global_indices);
  c.view("lens", p.lens, DType::i32, {tokens});
  if (!host_visible(p.topk_indices) || !host_visible(p.token_to_req) || !host_visible(p.block_table)) return;
  if (p.is_valid_token.present() && !host_visible(p.is_valid_token)) return;
  for (int64_t t = 0; t < tokens; ++t) {
    if (p.is_valid_token.present() && p.is_valid_token.ptr<uint8_t>()[t] == 0) continue;
    for (int64_t i = 0; i < k; ++i) {
      const int32_t local = p.topk_indices.row<int32_t>(t)[i];
      if (local < 0) continue;
      const int64_t block = local / p.page_size;
      // Blocks past the table become -1; the request must exist all the same.
      const bool in_table = block < p.block_table.shape[1];
      if (in_table) {
        check_blocks(c, t, p.token_to_req, p.block_table, block, block + 1, kMaxIndices / p.page_size);
      } else {
        const int64_t request = p.token_to_req.ptr<int32_t>()[t];
        c.require(request >= 0 && request < p.block_table.shape[0], "token_to_req[{}] must be in [0, {}), is {}", t, p.block_table.shape[0],
                  request);
      }
    }
  }
}

}  // namespace

Op<ComputeGlobalTopkParams> make_compute_global_topk() {
  return {"compute_global_topk", check,
          join(cuda::compute_global_topk(), opencl::compute_global_topk(), cpu::compute_global_topk(), reference::compute_global_topk())};
}

}  // namespace strata::ops
