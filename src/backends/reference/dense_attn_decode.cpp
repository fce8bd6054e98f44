#include "backends/reference/reference.h"
#include "backends/reference/sparse_attn_rows.h"
#include "formats/kv_rows.h"

namespace strata::reference {
namespace {

// The heads of query t of request b that read KV head g, over the request's first `visible` rows.
void query(const DenseAttnDecodeParams& p, int64_t b, int64_t t, int64_t g, int64_t visible) {
  const int64_t heads = p.q.shape[1] / p.num_kv_heads, first = g * heads;
  const QueryToken token{.q = p.q.row<Bf16>(t) + first * p.q.stride[1],
                         .q_stride = p.q.stride[1],
                         .num_heads = heads,
                         .head_dim = p.q.shape[2],
                         .sink = nullptr,
                         .scale = p.softmax_scale,
                         .out = p.out.row<Bf16>(t) + first * p.out.stride[1],
                         .out_stride = p.out.stride[1],
                         .value_dim = p.out.shape[2],
                         .lse = p.lse.present() ? p.lse.row<float>(t) + first * p.lse.stride[1] : nullptr,
                         .lse_stride = p.lse.stride[1],
                         .max_logits = nullptr,
                         .max_logits_stride = 0};
  attend(token, [&](auto&& add_row) {
    const int32_t* pages = p.block_table.row<int32_t>(b);
    const int64_t row_bytes = row_data_bytes(p.cache.format, p.cache.row_dim);
    PagedCache from_row = p.cache;
    std::array<float, kMaxHeadDim> row;
    for (int64_t j = 0; j < visible; ++j) {
      const int64_t page = pages[j / p.cache.page_size], in_page = j % p.cache.page_size;
      from_row.data = static_cast<std::byte*>(p.cache.data) + page * p.cache.page_stride + (in_page * p.num_kv_heads + g) * row_bytes;
      load_row(from_row, 0, row.data());
      add_row(row.data());
    }
  });
}

void run(const DenseAttnDecodeParams& p) {
  const int32_t* start = p.query_start_loc.ptr<int32_t>();
  for (int64_t b = 0; b < p.seq_lens.shape[0]; ++b) {
    const int64_t first = int64_t{start[b]} - start[0], queries = int64_t{start[b + 1]} - start[b];
    const int64_t seq_len = p.seq_lens.ptr<int32_t>()[b];
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t g = 0; g < p.num_kv_heads; ++g) query(p, b, first + i, g, p.causal ? seq_len - queries + i + 1 : seq_len);
    }
  }
}

}  // namespace

std::vector<Implementation<DenseAttnDecodeParams>> dense_attn_decode() { return always(run); }

}  // namespace strata::reference
