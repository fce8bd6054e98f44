#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indexer/indexer_checks.h"

namespace strata::ops {
namespace {

void check(const IndexerLogitsParams& p, DeviceId device) {
  ParamCheck c("indexer_logits", device);
  check_scoring_views(c, p);
  c.view("logits", p.logits, DType::f32, {p.q.shape[0], kAny});
  check_output(c, "logits", p.logits);
  c.values_in("lengths", p.lengths, 0, p.logits.shape[1] + 1, false);
  check_candidates(c, p);
}

}  // namespace

Op<IndexerLogitsParams> make_indexer_logits() {
  return {"indexer_logits", check,
          join(cuda::indexer_logits(), opencl::indexer_logits(), cpu::indexer_logits(), reference::indexer_logits())};
}

}  // namespace strata::ops
