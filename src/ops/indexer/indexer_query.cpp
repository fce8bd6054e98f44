#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indexer/indexer_checks.h"

namespace strata::ops {

namespace {

void check(const IndexerQueryParams& p, DeviceId device) {
  ParamCheck c("indexer_query", device);
  check_query_inputs(c, p);
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1], dim = p.q.shape[2];
  c.require(p.q_out.dtype != DType::u8 || dim % kMxfp4Block == 0, "q must have a multiple of {} values per head for MXFP4 values, has {}",
            int{kMxfp4Block}, dim);
  check_query_codes(c, "q_out", p.q_out, "q_scale_out", p.q_scale_out, tokens, heads, dim);
  c.view("weights_out", p.weights_out, DType::f32, {tokens, heads});
  c.contiguous("weights_out", p.weights_out);
}

}  // namespace

Op<IndexerQueryParams> make_indexer_query() {
  return {"indexer_query", check, join(cuda::indexer_query(), opencl::indexer_query(), cpu::indexer_query(), reference::indexer_query())};
}

}  // namespace strata::ops
