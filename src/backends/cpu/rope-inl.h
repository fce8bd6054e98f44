// Rotates the last dimensions of an fp32 row: V4 5.4, interleaved pairs. Included once per SIMD target.
#if defined(STRATA_ROPE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_ROPE_INL_H
#undef STRATA_ROPE_INL_H
#else
#define STRATA_ROPE_INL_H
#endif

#include "backends/cpu/simd_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {

// Rotates the first `pairs` pairs of slice in place, by the angles of cos[0, pairs) and sin[0, pairs).
HWY_INLINE void rotate_pairs(float* HWY_RESTRICT slice, const float* HWY_RESTRICT cos, const float* HWY_RESTRICT sin, int64_t pairs,
                             bool inverse) {
  const F32 df;
  const VF sign = hn::Set(df, inverse ? -0.0f : 0.0f);
  int64_t i = 0;
  for (; i < whole(pairs); i += kLanes) {
    const VF c = hn::LoadU(df, cos + i);
    const VF s = hn::Xor(hn::LoadU(df, sin + i), sign);
    VF e, o;
    hn::LoadInterleaved2(df, slice + 2 * i, e, o);
    hn::StoreInterleaved2(hn::NegMulAdd(o, s, hn::Mul(e, c)), hn::MulAdd(e, s, hn::Mul(o, c)), df, slice + 2 * i);
  }
  for (; i < pairs; ++i) {
    const float s = inverse ? -sin[i] : sin[i], e = slice[2 * i], o = slice[2 * i + 1];
    slice[2 * i] = e * cos[i] - o * s;
    slice[2 * i + 1] = o * cos[i] + e * s;
  }
}
// Rotates slice[0, dim) in place; cos_sin is the table row: dim/2 cosines, then dim/2 sines.
HWY_INLINE void apply_rope(float* HWY_RESTRICT slice, const float* HWY_RESTRICT cos_sin, int64_t dim, bool inverse) {
  rotate_pairs(slice, cos_sin, cos_sin + dim / 2, dim / 2, inverse);
}

// out[0, n) = x[0, n) * scale in fp32.
HWY_INLINE void widen(const Bf16* HWY_RESTRICT x, int64_t n, float scale, float* HWY_RESTRICT out) {
  const VF s = hn::Set(F32(), scale);
  int64_t i = 0;
  for (; i < whole(n); i += kLanes) hn::StoreU(hn::Mul(load_bf16(x + i), s), F32(), out + i);
  for (; i < n; ++i) out[i] = to_float(x[i]) * scale;
}
// bytes[0, 2n) = bf16 of x[0, n); bytes of any alignment.
HWY_INLINE void narrow(const float* HWY_RESTRICT x, int64_t n, void* HWY_RESTRICT bytes) {
  uint8_t* const out = static_cast<uint8_t*>(bytes);
  int64_t i = 0;
  for (; i < whole(n); i += kLanes) store_bf16(hn::LoadU(F32(), x + i), out + 2 * i);
  for (; i < n; ++i) store_u16(out + 2 * i, to_bf16(x[i]).bits);  // NOLINT(clang-analyzer-core.*): x has n values
}

// out[0, dim) = the rotation of slice[0, dim) * scale, bf16 to bf16; out may be slice.
HWY_INLINE void rotate_bf16(const Bf16* slice, const float* cos_sin, int64_t dim, bool inverse, float scale, Bf16* out) {
  const F32 df;
  const int64_t pairs = dim / 2;
  const float* const cos = cos_sin;
  const float* const sin = cos_sin + pairs;
  const VF sign = hn::Set(df, inverse ? -0.0f : 0.0f), factor = hn::Set(df, scale);
  int64_t i = 0;
  for (; i < whole(pairs); i += kLanes) {
    const VF c = hn::Mul(hn::LoadU(df, cos + i), factor);
    const VF s = hn::Mul(hn::Xor(hn::LoadU(df, sin + i), sign), factor);
    VF e, o;
    load_bf16_pairs(slice + 2 * i, e, o);
    store_bf16_pairs(hn::NegMulAdd(o, s, hn::Mul(e, c)), hn::MulAdd(e, s, hn::Mul(o, c)), out + 2 * i);
  }
  for (; i < pairs; ++i) {
    const float c = cos[i] * scale, s = (inverse ? -sin[i] : sin[i]) * scale;
    const float e = to_float(slice[2 * i]), o = to_float(slice[2 * i + 1]);
    out[2 * i] = to_bf16(e * c - o * s);
    out[2 * i + 1] = to_bf16(o * c + e * s);
  }
}

// sum of x[i]^2 over n values.
HWY_INLINE float sum_of_squares(const float* HWY_RESTRICT x, int64_t n) {
  VF acc = hn::Zero(F32());
  int64_t i = 0;
  for (; i < whole(n); i += kLanes) {
    const VF v = hn::LoadU(F32(), x + i);
    acc = hn::MulAdd(v, v, acc);
  }
  float rest = 0;
  for (; i < n; ++i) rest += x[i] * x[i];
  return rest + sum(acc);
}
HWY_INLINE float sum_of_squares(const Bf16* HWY_RESTRICT x, int64_t n) {
  // Four chains: a single one would take the latency of 32 multiply-adds for a head of 512.
  VF acc[4];
  for (VF& a : acc) a = hn::Zero(F32());
  const auto add = [&acc](const Bf16* p, int j) HWY_ATTR {
    VF e, o;
    load_bf16_pairs(p, e, o);
    acc[j] = hn::MulAdd(e, e, acc[j]);
    acc[j + 1] = hn::MulAdd(o, o, acc[j + 1]);
  };
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    add(x + i, 0);
    add(x + i + 2 * kLanes, 2);
  }
  float rest = 0;
  for (; i < n; ++i) rest += to_float(x[i]) * to_float(x[i]);
  return rest + sum(hn::Add(hn::Add(acc[0], acc[1]), hn::Add(acc[2], acc[3])));
}

}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
