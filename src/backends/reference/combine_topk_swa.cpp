#include <algorithm>

#include "backends/reference/reference.h"

namespace strata::reference {
namespace {

void run(const CombineTopkSwaParams& p) {
  const int32_t* starts = p.query_start_loc.ptr<int32_t>();
  const int64_t width = p.combined_indices.shape[1];
  for (int64_t r = 0; r < p.seq_lens.shape[0]; ++r) {
    const int64_t begin = int64_t{starts[r]} - starts[0];  // query_start_loc counts the tokens of the whole batch
    const int64_t end = int64_t{starts[r + 1]} - starts[0];
    const int64_t seq_len = p.seq_lens.ptr<int32_t>()[r];
    const int64_t gather_start = seq_len - p.gather_lens.ptr<int32_t>()[r];
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = seq_len - end + t;
      const int64_t num_topk = std::min<int64_t>((position + 1) / p.ratio, p.top_k);
      const int64_t num_window = std::min<int64_t>(position + 1, p.window);
      const int64_t first_window_row = r * p.m + p.n + (position - num_window + 1 - gather_start);
      int32_t* row = p.combined_indices.row<int32_t>(t);
      for (int64_t i = 0; i < num_topk; ++i) row[i] = static_cast<int32_t>(p.topk_indices.row<int32_t>(t)[i] + r * p.m);
      for (int64_t i = 0; i < num_window; ++i) row[num_topk + i] = static_cast<int32_t>(first_window_row + i);
      std::fill(row + num_topk + num_window, row + width, -1);
      p.combined_lens.ptr<int32_t>()[t] = static_cast<int32_t>(num_topk + num_window);
    }
  }
}

}  // namespace

std::vector<Implementation<CombineTopkSwaParams>> combine_topk_swa() { return always(run); }

}  // namespace strata::reference
