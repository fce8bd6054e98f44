#include "backends/reference/reference.h"
#include "backends/reference/sparse_attn_rows.h"
#include "formats/kv_rows.h"

namespace strata::reference {
namespace {

// Query t of request b over its first `visible` rows.
void query(const DenseAttnDecodeParams& p, int64_t b, int64_t t, int64_t visible) {
  const QueryToken token{.q = p.q.row<Bf16>(t),
                         .q_stride = p.q.stride[1],
                         .num_heads = p.q.shape[1],
                         .head_dim = p.q.shape[2],
                         .sink = nullptr,
                         .scale = p.softmax_scale,
                         .out = p.out.row<Bf16>(t),
                         .out_stride = p.out.stride[1],
                         .value_dim = p.out.shape[2],
                         .lse = p.lse.present() ? p.lse.row<float>(t) : nullptr,
                         .lse_stride = p.lse.stride[1],
                         .max_logits = nullptr,
                         .max_logits_stride = 0};
  attend(token, [&](auto&& add_row) {
    const int32_t* pages = p.block_table.row<int32_t>(b);
    std::array<float, kMaxHeadDim> row;
    for (int64_t j = 0; j < visible; ++j) {
      load_row(p.cache, int64_t{pages[j / p.cache.page_size]} * p.cache.page_size + j % p.cache.page_size, row.data());
      add_row(row.data());
    }
  });
}

void run(const DenseAttnDecodeParams& p) {
  const int32_t* start = p.query_start_loc.ptr<int32_t>();
  for (int64_t b = 0; b < p.seq_lens.shape[0]; ++b) {
    const int64_t first = int64_t{start[b]} - start[0], queries = int64_t{start[b + 1]} - start[b];
    for (int64_t i = 0; i < queries; ++i) query(p, b, first + i, p.seq_lens.ptr<int32_t>()[b] - queries + i + 1);
  }
}

}  // namespace

std::vector<Implementation<DenseAttnDecodeParams>> dense_attn_decode() { return always(run); }

}  // namespace strata::reference
