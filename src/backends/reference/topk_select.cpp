#include "backends/reference/reference.h"
#include "backends/reference/topk_row.h"

namespace strata::reference {
namespace {

void run(const TopkSelectParams& p) {
  for (int64_t t = 0; t < p.logits.shape[0]; ++t) {
    select_topk(p.logits.row<float>(t), p.lengths.ptr<int32_t>()[t], p.topk_indices.shape[1], p.topk_indices.row<int32_t>(t));
  }
}

}  // namespace

std::vector<Implementation<TopkSelectParams>> topk_select() { return always(run); }

}  // namespace strata::reference
