#include <algorithm>

#include "backends/reference/reference.h"

namespace strata::reference {
namespace {

void run(const SwaIndicesParams& p) {
  for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
    int32_t* row = p.indices.row<int32_t>(t);
    std::fill_n(row, p.window, -1);
    int32_t& len = p.lens.ptr<int32_t>()[t];
    len = 0;
    if (p.is_valid_token.present() && p.is_valid_token.ptr<uint8_t>()[t] == 0) continue;
    const int64_t position = p.positions.ptr<int64_t>()[t];
    const int64_t start = std::max<int64_t>(position - p.window + 1, 0);
    const int32_t* pages = p.block_table.row<int32_t>(p.token_to_req.ptr<int32_t>()[t]);
    len = static_cast<int32_t>(position + 1 - start);
    for (int32_t i = 0; i < len; ++i) {
      row[i] = static_cast<int32_t>(pages[(start + i) / p.page_size] * int64_t{p.page_size} + (start + i) % p.page_size);
    }
  }
}

}  // namespace

std::vector<Implementation<SwaIndicesParams>> swa_indices() { return always(run); }

}  // namespace strata::reference
