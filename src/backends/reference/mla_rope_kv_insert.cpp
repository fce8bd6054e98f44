#include "backends/reference/reference.h"
#include "backends/reference/rotate_row.h"
#include "formats/kv_rows.h"

namespace strata::reference {
namespace {

// Rotates the last `rotary` of `dim` bf16 values in place; null cos_sin: no rotary embedding.
void rotate(Bf16* x, int64_t dim, int64_t rotary, const float* cos_sin) {
  if (cos_sin == nullptr) return;
  rotate_last_lanes(
      dim, rotary, cos_sin, false, [&](int64_t i) { return double{to_float(x[i])}; },
      [&](int64_t i, double v) { x[i] = to_bf16(static_cast<float>(v)); });
}

void query(const MlaRopeKvInsertParams& p, int64_t t, const float* cos_sin) {
  const int64_t dim = p.q.shape[2], rotary = p.k_pe.shape[1];
  for (int64_t h = 0; h < p.q.shape[1]; ++h) {
    Bf16* q = p.q.row<Bf16>(t, h);
    rotate(q, dim, rotary, cos_sin);
    if (p.llama_4_scaling.present()) {
      const float scaling = p.llama_4_scaling.ptr<float>()[t];
      for (int64_t i = 0; i < dim; ++i) q[i] = to_bf16(to_float(q[i]) * scaling);
    }
    if (p.q_pe_out.present() && t < p.q_pe_out.shape[0]) std::copy_n(q + dim - rotary, rotary, p.q_pe_out.row<Bf16>(t, h));
  }
}

void insert(const MlaRopeKvInsertParams& p, int64_t t, int64_t slot) {
  const int64_t latent = p.c.shape[1], rotary = p.k_pe.shape[1];
  float row[kMaxRowDim] = {};
  for (int64_t i = 0; i < latent; ++i) row[i] = to_float(p.c.row<Bf16>(t)[i]);
  for (int64_t i = 0; i < rotary; ++i) row[latent + i] = to_float(p.k_pe.row<Bf16>(t)[i]);
  store_row(p.cache, slot, row, {.ue8m0 = p.ue8m0, .divide = true});
}

void run(const MlaRopeKvInsertParams& p) {
  for (int64_t t = 0; t < p.q.shape[0]; ++t) {
    const float* cos_sin = p.cos_sin.present() ? p.cos_sin.row<float>(p.positions.ptr<int64_t>()[t]) : nullptr;
    query(p, t, cos_sin);
    rotate(p.k_pe.row<Bf16>(t), p.k_pe.shape[1], p.k_pe.shape[1], cos_sin);
    if (!p.slot_mapping.present() || t >= p.slot_mapping.shape[0]) continue;
    if (const int64_t slot = p.slot_mapping.ptr<int64_t>()[t]; slot >= 0) insert(p, t, slot);
  }
}

}  // namespace

std::vector<Implementation<MlaRopeKvInsertParams>> mla_rope_kv_insert() { return always(run); }

}  // namespace strata::reference
