#include "backends/reference/reference.h"
#include "formats/kv_rows.h"

namespace strata::reference {
namespace {

void run(const SavePartialStatesParams& p) {
  const int64_t half = p.ape.shape[1], ratio = p.ape.shape[0];
  for (int64_t t = 0; t < p.kv_score.shape[0]; ++t) {
    const int64_t slot = p.state_slots.ptr<int64_t>()[t];
    if (slot < 0) continue;
    const float* kv = p.kv_score.row<float>(t);
    const float* score = kv + half;
    const float* ape = p.ape.row<float>(p.positions.ptr<int64_t>()[t] % ratio);
    float row[kMaxRowDim] = {};
    for (int64_t i = 0; i < half; ++i) {
      row[i] = kv[i];
      row[half + i] = score[i] + ape[i];
    }
    store_row(p.state, slot, row);
  }
}

}  // namespace

std::vector<Implementation<SavePartialStatesParams>> save_partial_states() { return always(run); }

}  // namespace strata::reference
