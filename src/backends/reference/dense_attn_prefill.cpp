#include "backends/reference/reference.h"
#include "backends/reference/sparse_attn_rows.h"

namespace strata::reference {
namespace {

double dot(const Bf16* a, const Bf16* b, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += double{to_float(a[i])} * to_float(b[i]);
  return sum;
}

// Query t and head h over the keys [first, first + visible).
void query(const DenseAttnPrefillParams& p, int64_t t, int64_t h, int64_t first, int64_t visible) {
  const int64_t nope = p.k_nope.shape[2], rotary = p.k_pe.shape[1], value_dim = p.v.shape[2];
  const Bf16* q = p.q.row<Bf16>(t, h);
  OnlineSoftmax state;
  state.reset(value_dim);
  std::array<float, kMaxHeadDim> value;
  for (int64_t j = first; j < first + visible; ++j) {
    const double logit = dot(q, p.k_nope.row<Bf16>(j, h), nope) + dot(q + nope, p.k_pe.row<Bf16>(j), rotary);
    for (int64_t d = 0; d < value_dim; ++d) value[d] = to_float(p.v.row<Bf16>(j, h)[d]);
    state.add(p.softmax_scale * logit, value.data());
  }
  const double denominator = state.denominator(-std::numeric_limits<float>::infinity());
  for (int64_t d = 0; d < value_dim; ++d) {
    const float out = static_cast<float>(state.value(d) / denominator);
    if (p.out.dtype == DType::f32) {
      p.out.row<float>(t, h)[d] = out;
    } else {
      p.out.row<Bf16>(t, h)[d] = to_bf16(out);
    }
  }
  if (p.lse.present()) p.lse.row<float>(t)[h] = state.empty() ? -std::numeric_limits<float>::infinity() : state.lse();
}

// Queries [q0, q0 + n) of a request whose keys are [k0, k0 + m).
void request(const DenseAttnPrefillParams& p, int64_t q0, int64_t n, int64_t k0, int64_t m) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t visible = p.causal ? std::max<int64_t>(m - n + i + 1, 0) : m;
    for (int64_t h = 0; h < p.q.shape[1]; ++h) query(p, q0 + i, h, k0, visible);
  }
}

void run(const DenseAttnPrefillParams& p) {
  if (!p.query_start_loc.present()) return request(p, 0, p.q.shape[0], 0, p.k_nope.shape[0]);
  const int32_t* queries = p.query_start_loc.ptr<int32_t>();
  const int32_t* keys = p.key_start_loc.ptr<int32_t>();
  for (int64_t b = 0; b + 1 < p.query_start_loc.shape[0]; ++b) {
    request(p, int64_t{queries[b]} - queries[0], int64_t{queries[b + 1]} - queries[b], int64_t{keys[b]} - keys[0],
            int64_t{keys[b + 1]} - keys[b]);
  }
}

}  // namespace

std::vector<Implementation<DenseAttnPrefillParams>> dense_attn_prefill() { return always(run); }

}  // namespace strata::reference
