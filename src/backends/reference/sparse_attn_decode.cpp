#include "backends/reference/reference.h"
#include "backends/reference/sparse_attn_rows.h"
#include "formats/kv_rows.h"

namespace strata::reference {
namespace {

// The attended rows of query token (b, s) in one cache: entries before the length that are not -1.
template <class AddRow>
void add_rows(const PagedCache& cache, const TensorView& indices, const TensorView& topk_length, int64_t b, int64_t s, AddRow&& add_row) {
  const int64_t length = topk_length.present() ? topk_length.ptr<int32_t>()[b] : indices.shape[2];
  const int32_t* slots = indices.row<int32_t>(b, s);
  std::array<float, kMaxHeadDim> row;
  for (int64_t i = 0; i < length; ++i) {
    if (slots[i] < 0) continue;
    load_row(cache, slots[i], row.data());
    add_row(row.data());
  }
}

void run(const SparseAttnDecodeParams& p) {
  for (int64_t b = 0; b < p.q.shape[0]; ++b) {
    for (int64_t s = 0; s < p.q.shape[1]; ++s) {
      const auto per_head = [&](const TensorView& v) { return v.present() ? v.row<float>(b) + s * v.stride[2] : nullptr; };
      const QueryToken token{.q = p.q.row<Bf16>(b, s),
                             .q_stride = p.q.stride[2],
                             .num_heads = p.q.shape[2],
                             .head_dim = p.q.shape[3],
                             .sink = p.attn_sink.present() ? p.attn_sink.ptr<float>() : nullptr,
                             .scale = p.softmax_scale,
                             .out = p.out.row<Bf16>(b, s),
                             .out_stride = p.out.stride[2],
                             .value_dim = p.out.shape[3],
                             .lse = per_head(p.lse),
                             .lse_stride = p.lse.stride[1],
                             .max_logits = per_head(p.max_logits),
                             .max_logits_stride = p.max_logits.stride[1]};
      attend(token, [&](auto&& add_row) {
        add_rows(p.cache, p.indices, p.topk_length, b, s, add_row);
        if (p.extra_cache.present()) add_rows(p.extra_cache, p.extra_indices, p.extra_topk_length, b, s, add_row);
      });
    }
  }
}

}  // namespace

std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode() { return always(run); }

}  // namespace strata::reference
