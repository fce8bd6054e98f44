#include "backends/reference/reference.h"
#include "backends/reference/sparse_attn_rows.h"

namespace strata::reference {
namespace {

void run(const SparseAttnPrefillParams& p) {
  const int64_t head_dim = p.q.shape[2];
  for (int64_t t = 0; t < p.q.shape[0]; ++t) {
    const QueryToken token{.q = p.q.row<Bf16>(t),
                           .q_stride = p.q.stride[1],
                           .num_heads = p.q.shape[1],
                           .head_dim = head_dim,
                           .sink = p.attn_sink.present() ? p.attn_sink.ptr<float>() : nullptr,
                           .scale = p.softmax_scale,
                           .out = p.out.row<Bf16>(t),
                           .out_stride = p.out.stride[1],
                           .value_dim = p.out.shape[2],
                           .lse = p.lse.present() ? p.lse.row<float>(t) : nullptr,
                           .lse_stride = p.lse.stride[1],
                           .max_logits = p.max_logits.present() ? p.max_logits.row<float>(t) : nullptr,
                           .max_logits_stride = p.max_logits.stride[1]};
    const int64_t length = p.topk_length.present() ? p.topk_length.ptr<int32_t>()[t] : p.indices.shape[1];
    attend(token, [&](auto&& add_row) {
      std::array<float, kMaxHeadDim> row;
      for (int64_t i = 0; i < length; ++i) {
        const int64_t index = p.indices.row<int32_t>(t)[i];
        if (index < 0 || index >= p.kv.shape[0]) continue;
        const Bf16* kv = p.kv.row<Bf16>(index);
        for (int64_t d = 0; d < head_dim; ++d) row[d] = to_float(kv[d]);
        add_row(row.data());
      }
    });
  }
}

}  // namespace

std::vector<Implementation<SparseAttnPrefillParams>> sparse_attn_prefill() { return always(run); }

}  // namespace strata::reference
