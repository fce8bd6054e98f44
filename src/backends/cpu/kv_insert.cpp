// Query norm + RoPE and key insertion on the CPU. Floor: T*H*D*2 bytes read and T*Hp*D*2 written (V4-Flash, T = 512: 67 MB, about
// 2 ms at 30 GB/s); the keys are 1/H of that. Arithmetic: two passes over a head that stays in L1.
#include <cmath>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kv_insert.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/kv_insert_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

// One head, bf16 out; q_out may be q.
HWY_INLINE void query_head(const Bf16* q, int64_t nope, int64_t rotary, const float* cos_sin, float scale, Bf16* out) {
  const VF s = hn::Set(F32(), scale);
  int64_t i = 0;
  for (; i < whole_pairs(nope); i += 2 * kLanes) {
    VF e, o;
    load_bf16_pairs(q + i, e, o);
    store_bf16_pairs(hn::Mul(e, s), hn::Mul(o, s), out + i);
  }
  for (; i < nope; ++i) out[i] = to_bf16(to_float(q[i]) * scale);
  rotate_bf16(q + nope, cos_sin, rotary, false, scale, out + nope);
}
// The same with e4m3 out: the values times scale_inv, quantised. rotary is at most kMaxRowDim.
HWY_INLINE void query_head(const Bf16* q, int64_t nope, int64_t rotary, const float* cos_sin, float scale, float scale_inv, E4m3* out) {
  const F32 df;
  const VF s = hn::Set(df, scale), inverse = hn::Set(df, scale_inv);
  int64_t i = 0;
  for (; i < whole(nope); i += kLanes) store_e4m3(hn::Mul(hn::Mul(load_bf16(q + i), s), inverse), out + i);
  for (; i < nope; ++i) out[i] = to_e4m3(to_float(q[i]) * scale * scale_inv);
  float rope[kMaxRowDim];
  widen(q + nope, rotary, scale, rope);
  apply_rope(rope, cos_sin, rotary, false);
  store_scaled_e4m3(rope, rotary, scale_inv, false, reinterpret_cast<uint8_t*>(out + nope));
}

void QueryHead(const QNormRopeKvInsertParams& p, int64_t n, int64_t h, const float* cos_sin) {
  const Bf16* const q = p.q.row<Bf16>(n, h);
  const int64_t dim = p.q.shape[2], rotary = p.cos_sin.shape[1], nope = dim - rotary;
  const float scale = 1.0f / std::sqrt(sum_of_squares(q, dim) / static_cast<float>(dim) + p.eps);
  if (p.q_out.dtype == DType::e4m3) {
    query_head(q, nope, rotary, cos_sin, scale, p.q_scale_inv, p.q_out.row<E4m3>(n, h));
  } else {
    query_head(q, nope, rotary, cos_sin, scale, p.q_out.row<Bf16>(n, h));
  }
}

void RotateAndInsert(const QNormRopeKvInsertParams& p, int64_t n, int64_t slot, const float* cos_sin) {
  const int64_t dim = p.cache.row_dim, rotary = p.cos_sin.shape[1];
  float row[kMaxRowDim];
  widen(p.kv.row<Bf16>(n), dim, 1.0f, row);
  apply_rope(row + dim - rotary, cos_sin, rotary, false);
  store_cache_row(p.cache, slot, row);
}

void Insert(const QuantizeAndInsertKParams& p, int64_t n, int64_t slot) {
  // Per-tensor MLA rows are divided by their scale, V4 rows multiplied by its reciprocal, as in the reference.
  const StoreOptions options{.ue8m0 = p.ue8m0, .divide = p.cache.row_dim == fixed_row_dim(KvFormat::fp8_ds_mla)};
  float row[kMaxRowDim];
  widen(p.k.row<Bf16>(n), p.cache.row_dim, 1.0f, row);
  store_cache_row(p.cache, slot, row, options);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backends/cpu/simd_implementation.h"
#include "core/check.h"

namespace strata::cpu {
namespace {

HWY_EXPORT(QueryHead);
HWY_EXPORT(RotateAndInsert);
HWY_EXPORT(Insert);

constexpr int64_t kHeadsPerTask = 32;  // about 64 KB of traffic
constexpr int64_t kRowsPerTask = 16;

void run_qnorm(const QNormRopeKvInsertParams& p, const ExecutionContext& context) {
  const size_t target = simd_index(context.device);
  const auto query_head = HWY_DISPATCH_TABLE(QueryHead)[target];
  const auto rotate_and_insert = HWY_DISPATCH_TABLE(RotateAndInsert)[target];
  const int64_t heads = p.q.shape[1], padded_heads = p.q_out.shape[1];
  const int64_t inserts = p.slot_mapping.present() ? p.slot_mapping.shape[0] : 0;
  const int64_t* const positions = p.positions.ptr<int64_t>();
  // One task more than heads per token: its key.
  const int64_t per_token = padded_heads + 1;
  parallel_for(context.device, p.q.shape[0] * per_token, kHeadsPerTask, [&](int64_t task) {
    const int64_t n = task / per_token, h = task % per_token;
    const float* const cos_sin = p.cos_sin.row<float>(positions[n]);
    if (h < heads) {
      query_head(p, n, h, cos_sin);
    } else if (h < padded_heads) {
      std::memset(p.q_out.row<Bf16>(n, h), 0, static_cast<size_t>(p.q.shape[2]) * sizeof(Bf16));
    } else if (n < inserts && p.slot_mapping.ptr<int64_t>()[n] >= 0) {
      rotate_and_insert(p, n, p.slot_mapping.ptr<int64_t>()[n], cos_sin);
    }
  });
}

void run_insert(const QuantizeAndInsertKParams& p, const ExecutionContext& context) {
  const auto insert = HWY_DISPATCH_TABLE(Insert)[simd_index(context.device)];
  parallel_for(context.device, p.slot_mapping.shape[0], kRowsPerTask, [&](int64_t n) {
    const int64_t slot = p.slot_mapping.ptr<int64_t>()[n];
    if (slot >= 0) insert(p, n, slot);
  });
}

}  // namespace

std::vector<Implementation<QNormRopeKvInsertParams>> qnorm_rope_kv_insert() {
  auto list = simd_implementation(run_qnorm);
  list[0].supports = [anywhere = list[0].supports](const QNormRopeKvInsertParams& p, const Device& device) {
    if (p.q_out.dtype == DType::e4m3 && p.cos_sin.shape[1] > kMaxRowDim) {
      return Support::no(fmt::format("e4m3 queries with more than {} rotary dimensions", int{kMaxRowDim}));
    }
    return anywhere(p, device);
  };
  return list;
}
std::vector<Implementation<QuantizeAndInsertKParams>> quantize_and_insert_k() { return simd_implementation(run_insert); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
