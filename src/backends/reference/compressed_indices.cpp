#include <algorithm>

#include "backends/reference/reference.h"

namespace strata::reference {
namespace {

void run(const CompressedIndicesParams& p) {
  const int64_t width = p.indices.shape[1];
  for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
    int32_t* row = p.indices.row<int32_t>(t);
    std::fill_n(row, width, -1);
    int32_t& len = p.lens.ptr<int32_t>()[t];
    len = 0;
    if (p.is_valid_token.present() && p.is_valid_token.ptr<uint8_t>()[t] == 0) continue;
    len = static_cast<int32_t>(std::min((p.positions.ptr<int64_t>()[t] + 1) / p.ratio, width));
    if (len == 0) continue;
    const int32_t* pages = p.block_table.present() ? p.block_table.row<int32_t>(p.token_to_req.ptr<int32_t>()[t]) : nullptr;
    for (int32_t i = 0; i < len; ++i) {
      row[i] = pages == nullptr ? i : static_cast<int32_t>(pages[i / p.page_size] * int64_t{p.page_size} + i % p.page_size);
    }
  }
}

}  // namespace

std::vector<Implementation<CompressedIndicesParams>> compressed_indices() { return always(run); }

}  // namespace strata::reference
