// The rotation of the last lanes of an fp32 row: V4 5.4, interleaved pairs. Included once per SIMD target.
#if defined(STRATA_ROPE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_ROPE_INL_H
#undef STRATA_ROPE_INL_H
#else
#define STRATA_ROPE_INL_H
#endif

#include "backends/cpu/simd_formats-inl.h"
#include "formats/rope.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {

// slice[0, dim) in place; cos_sin is the table row: dim/2 cosines, then dim/2 sines.
HWY_INLINE void rotate_lanes(float* HWY_RESTRICT slice, const float* HWY_RESTRICT cos_sin, int64_t dim, bool inverse) {
  const F32 df;
  const int64_t pairs = dim / 2;
  const VF sign = hn::Set(df, inverse ? -0.0f : 0.0f);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= pairs; i += kLanes) {
    const VF c = hn::LoadU(df, cos_sin + i);
    const VF s = hn::Xor(hn::LoadU(df, cos_sin + pairs + i), sign);
    VF e, o;
    hn::LoadInterleaved2(df, slice + 2 * i, e, o);
    hn::StoreInterleaved2(hn::NegMulAdd(o, s, hn::Mul(e, c)), hn::MulAdd(e, s, hn::Mul(o, c)), df, slice + 2 * i);
  }
  for (; i < pairs; ++i) {
    const RopePair<float> turned = rotate_pair(slice[2 * i], slice[2 * i + 1], cos_sin, i, dim, inverse);
    slice[2 * i] = turned.first;
    slice[2 * i + 1] = turned.second;
  }
}

// out[0, n) = fp32 of x[0, n).
HWY_INLINE void widen(const Bf16* HWY_RESTRICT x, int64_t n, float* HWY_RESTRICT out) {
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= n; i += kLanes) hn::StoreU(load_bf16(x + i), F32(), out + i);
  for (; i < n; ++i) out[i] = to_float(x[i]);
}
// bytes[0, 2n) = bf16 of x[0, n); bytes of any alignment.
HWY_INLINE void narrow(const float* HWY_RESTRICT x, int64_t n, void* HWY_RESTRICT bytes) {
  uint8_t* const out = static_cast<uint8_t*>(bytes);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= n; i += kLanes) store_bf16(hn::LoadU(F32(), x + i), out + 2 * i);
  for (; i < n; ++i) store_u16(out + 2 * i, to_bf16(x[i]).bits);
}

// sum of x[i]^2 over n values.
template <class T>
HWY_INLINE float sum_of_squares(const T* HWY_RESTRICT x, int64_t n) {
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  VF acc[4];
  for (VF& a : acc) a = hn::Zero(F32());
  int64_t i = 0;
  for (; i + 4 * kStep <= n; i += 4 * kStep) {
    for (int64_t j = 0; j < 4; ++j) {
      const VF v = load_values(x + i + j * kStep);
      acc[j] = hn::MulAdd(v, v, acc[j]);
    }
  }
  for (; i + kStep <= n; i += kStep) {
    const VF v = load_values(x + i);
    acc[0] = hn::MulAdd(v, v, acc[0]);
  }
  float rest = 0;
  for (; i < n; ++i) rest += to_float(x[i]) * to_float(x[i]);
  return rest + sum(hn::Add(hn::Add(acc[0], acc[1]), hn::Add(acc[2], acc[3])));
}

}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
