#include "backends/reference/reference.h"
#include "formats/kv_rows.h"

namespace strata::reference {
namespace {

void run(const DequantizeAndGatherKParams& p) {
  for (int64_t c = 0; c < p.seq_lens.shape[0]; ++c) {
    const int64_t seq_len = p.seq_lens.ptr<int32_t>()[c];
    const int64_t count = p.gather_lens.present() ? p.gather_lens.ptr<int32_t>()[c] : seq_len;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = seq_len - count + i;
      const int64_t page = p.block_table.row<int32_t>(c)[position / p.cache.page_size];
      float row[kMaxRowDim] = {};
      load_row(p.cache, page * p.cache.page_size + position % p.cache.page_size, row);
      Bf16* out = p.out.row<Bf16>(c, p.offset + i);
      for (int64_t d = 0; d < p.cache.row_dim; ++d) out[d] = to_bf16(row[d]);
    }
  }
}

}  // namespace

std::vector<Implementation<DequantizeAndGatherKParams>> dequantize_and_gather_k() { return always(run); }

}  // namespace strata::reference
