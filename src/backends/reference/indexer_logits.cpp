#include "backends/reference/indexer_row.h"
#include "backends/reference/reference.h"

namespace strata::reference {
namespace {

void run(const IndexerLogitsParams& p) {
  for (int64_t t = 0; t < p.q.shape[0]; ++t) score_candidates(p, t, p.lengths.ptr<int32_t>()[t], p.logits.row<float>(t));
}

}  // namespace

std::vector<Implementation<IndexerLogitsParams>> indexer_logits() { return always(run); }

}  // namespace strata::reference
