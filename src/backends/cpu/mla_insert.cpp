// Rotation of MLA queries and keys and the cache write in one pass. Floor: 4 * 64 bytes a head and token rotated in place (T = 4096, H =
// 128: 134 MB), 4 * 192 with llama_4_scaling, 2 * 64 more where the rotary dimensions are copied; the keys are 1/H of that.
#include <cstring>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/mla_insert.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/kv_insert_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

// x[0, n) = bf16(x * factor).
HWY_INLINE void scale_bf16(Bf16* x, int64_t n, float factor) {
  const VF f = hn::Set(F32(), factor);
  int64_t i = 0;
  for (; i < whole_pairs(n); i += 2 * kLanes) {
    VF e, o;
    load_bf16_pairs(x + i, e, o);
    store_bf16_pairs(hn::Mul(e, f), hn::Mul(o, f), x + i);
  }
  for (; i < n; ++i) x[i] = to_bf16(to_float(x[i]) * factor);
}

void MlaQueryHead(const MlaRopeKvInsertParams& p, int64_t t, int64_t h, const float* cos_sin) {
  const int64_t dim = p.q.shape[2], rotary = p.k_pe.shape[1];
  Bf16* const q = p.q.row<Bf16>(t, h);
  Bf16* const rope = q + dim - rotary;
  if (cos_sin != nullptr) rotate_bf16(rope, cos_sin, rotary, false, 1.0f, rope);
  if (p.llama_4_scaling.present()) scale_bf16(q, dim, p.llama_4_scaling.ptr<float>()[t]);
  if (p.q_pe_out.present() && t < p.q_pe_out.shape[0]) {
    std::memcpy(p.q_pe_out.row<Bf16>(t, h), rope, static_cast<size_t>(rotary) * sizeof(Bf16));
  }
}

// slot < 0: no cache row.
void MlaKey(const MlaRopeKvInsertParams& p, int64_t t, int64_t slot, const float* cos_sin) {
  const int64_t latent = p.c.shape[1], rotary = p.k_pe.shape[1];
  Bf16* const k_pe = p.k_pe.row<Bf16>(t);
  if (cos_sin != nullptr) rotate_bf16(k_pe, cos_sin, rotary, false, 1.0f, k_pe);
  if (slot < 0) return;
  float row[kMaxRowDim];
  widen(p.c.row<Bf16>(t), latent, 1.0f, row);
  widen(k_pe, rotary, 1.0f, row + latent);
  store_cache_row(p.cache, slot, row, {.ue8m0 = p.ue8m0, .divide = true});
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace {

HWY_EXPORT(MlaQueryHead);
HWY_EXPORT(MlaKey);

void run_mla_insert(const MlaRopeKvInsertParams& p, const ExecutionContext& context) {
  constexpr int64_t kHeadsPerTask = 128;
  const size_t target = simd_index(context.device);
  const auto query_head = HWY_DISPATCH_TABLE(MlaQueryHead)[target];
  const auto key = HWY_DISPATCH_TABLE(MlaKey)[target];
  const int64_t heads = p.q.shape[1], slots = p.slot_mapping.present() ? p.slot_mapping.shape[0] : 0;
  // One task more than heads per token: its key.
  const int64_t per_token = heads + 1;
  parallel_for(context.device, p.q.shape[0] * per_token, kHeadsPerTask, [&](int64_t task) {
    const int64_t t = task / per_token, h = task % per_token;
    const float* const cos_sin = p.cos_sin.present() ? p.cos_sin.row<float>(p.positions.ptr<int64_t>()[t]) : nullptr;
    if (h < heads) {
      query_head(p, t, h, cos_sin);
    } else {
      key(p, t, t < slots ? p.slot_mapping.ptr<int64_t>()[t] : -1, cos_sin);
    }
  });
}

}  // namespace

std::vector<Implementation<MlaRopeKvInsertParams>> mla_rope_kv_insert() { return simd_implementation(run_mla_insert); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
