#include <algorithm>
#include <cmath>

#include "backends/reference/reference.h"
#include "backends/reference/rotate_row.h"
#include "formats/kv_rows.h"

namespace strata::reference {
namespace {

void query_head(const QNormRopeKvInsertParams& p, int64_t n, int64_t h, const float* cos_sin) {
  const Bf16* q = p.q.row<Bf16>(n, h);
  const int64_t dim = p.q.shape[2];
  double sum = 0.0;
  for (int64_t i = 0; i < dim; ++i) sum += double{to_float(q[i])} * to_float(q[i]);
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(dim) + p.eps);
  const auto value = [&](int64_t i) { return to_float(q[i]) * scale; };
  if (p.q_out.dtype == DType::e4m3) {
    E4m3* out = p.q_out.row<E4m3>(n, h);
    rotate_last_lanes(dim, p.cos_sin.shape[1], cos_sin, false, value,
                      [&](int64_t i, double v) { out[i] = to_e4m3(static_cast<float>(v) * p.q_scale_inv); });
  } else {
    Bf16* out = p.q_out.row<Bf16>(n, h);
    rotate_last_lanes(dim, p.cos_sin.shape[1], cos_sin, false, value,
                      [&](int64_t i, double v) { out[i] = to_bf16(static_cast<float>(v)); });
  }
}

void insert(const QNormRopeKvInsertParams& p, int64_t n, int64_t slot, const float* cos_sin) {
  const Bf16* kv = p.kv.row<Bf16>(n);
  float row[kMaxRowDim] = {};
  rotate_last_lanes(
      p.cache.row_dim, p.cos_sin.shape[1], cos_sin, false, [&](int64_t i) { return double{to_float(kv[i])}; },
      [&](int64_t i, double v) { row[i] = static_cast<float>(v); });
  store_row(p.cache, slot, row);
}

void run(const QNormRopeKvInsertParams& p) {
  const int64_t heads = p.q.shape[1], padded_heads = p.q_out.shape[1], dim = p.q.shape[2];
  for (int64_t n = 0; n < p.q.shape[0]; ++n) {
    const float* cos_sin = p.cos_sin.row<float>(p.positions.ptr<int64_t>()[n]);
    for (int64_t h = 0; h < heads; ++h) query_head(p, n, h, cos_sin);
    for (int64_t h = heads; h < padded_heads; ++h) std::fill_n(p.q_out.row<Bf16>(n, h), dim, Bf16{0});
    if (p.slot_mapping.present() && n < p.slot_mapping.shape[0]) {
      const int64_t slot = p.slot_mapping.ptr<int64_t>()[n];
      if (slot >= 0) insert(p, n, slot, cos_sin);
    }
  }
}

}  // namespace

std::vector<Implementation<QNormRopeKvInsertParams>> qnorm_rope_kv_insert() { return always(run); }

}  // namespace strata::reference
