#include "backends/reference/indexer_row.h"
#include "backends/reference/reference.h"
#include "backends/reference/topk_row.h"

namespace strata::reference {
namespace {

// One row of logits; none for short contexts, where nothing is scored.
size_t workspace_bytes(const IndexerTopkParams& p) {
  return p.max_length <= p.topk_indices.shape[1] ? 0 : static_cast<size_t>(p.max_length) * sizeof(float);
}

void run(const IndexerTopkParams& p, float* logits) {
  const int64_t k = p.topk_indices.shape[1];
  for (int64_t t = 0; t < p.lengths.shape[0]; ++t) {
    const int64_t length = p.lengths.ptr<int32_t>()[t];
    int32_t* out = p.topk_indices.row<int32_t>(t);
    if (length <= k) {
      select_all(length, k, out);
    } else {
      score_candidates(p, t, length, logits);
      select_topk(logits, length, k, out);
    }
  }
}

}  // namespace

std::vector<Implementation<IndexerTopkParams>> indexer_topk() {
  Implementation<IndexerTopkParams> impl = always<IndexerTopkParams>(nullptr).front();
  impl.workspace_bytes = [](const IndexerTopkParams& p, const Device&) { return workspace_bytes(p); };
  impl.run = [](const IndexerTopkParams& p, const ExecutionContext& context) { run(p, static_cast<float*>(context.workspace.data)); };
  return {std::move(impl)};
}

}  // namespace strata::reference
