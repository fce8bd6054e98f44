#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indexer/indexer_checks.h"

namespace strata::ops {
namespace {

void check(const IndexerTopkParams& p, DeviceId device) {
  ParamCheck c("indexer_topk", device);
  c.view("lengths", p.lengths, DType::i32, {kAny});
  const int64_t tokens = p.lengths.shape[0];
  c.view("topk_indices", p.topk_indices, DType::i32, {tokens, kAny});
  c.require(p.topk_indices.shape[1] >= 1, "topk_indices must have at least 1 column, has {}", p.topk_indices.shape[1]);
  check_output(c, "topk_indices", p.topk_indices);
  c.require(p.max_length >= 0 && p.max_length < kMaxIndices, "max_length must be in [0, {}), is {}", kMaxIndices, p.max_length);
  c.values_in("lengths", p.lengths, 0, p.max_length + 1, false);
  // Short contexts select everything: the caller need not have computed what would be scored.
  if (p.max_length <= p.topk_indices.shape[1]) return;
  check_scoring_views(c, p);
  check_candidates(c, p);
}

}  // namespace

Op<IndexerTopkParams> make_indexer_topk() {
  return {"indexer_topk", check, join(cuda::indexer_topk(), cpu::indexer_topk(), reference::indexer_topk())};
}

}  // namespace strata::ops
