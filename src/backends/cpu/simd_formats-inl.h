// The number formats of src/formats in vectors of fp32, bit for bit the scalar codecs. Included once per SIMD target.
#if defined(STRATA_SIMD_FORMATS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_SIMD_FORMATS_INL_H
#undef STRATA_SIMD_FORMATS_INL_H
#else
#define STRATA_SIMD_FORMATS_INL_H
#endif
#undef STRATA_E4M3_PAIRS

#include <hwy/highway.h>

#include "formats/quantize.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using U8 = hn::Rebind<uint8_t, F32>;
using VF = hn::Vec<F32>;
using VU = hn::Vec<U32>;

// 1 (portable), 4, 8 or 16: every block of the formats (32, 64, 128 values) is a whole number of vectors.
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));

// The number of values in whole vectors.
HWY_INLINE constexpr int64_t whole(int64_t n) { return n - n % kLanes; }
HWY_INLINE constexpr int64_t whole_pairs(int64_t n) { return n - n % (2 * kLanes); }

HWY_INLINE VF load_bf16(const void* p) {
  const VU wide = hn::PromoteTo(U32(), hn::LoadU(U16(), static_cast<const uint16_t*>(p)));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(wide));
}

// The bf16 bits, round to nearest even, in the lower half of each lane.
HWY_INLINE VU bf16_bits(VF v) {
  const U32 du;
  const VU u = hn::BitCast(du, v);
  const VU odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  const VU rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(hn::Set(du, 0x7FFFu), odd)));
  const VU quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(du, 0x40u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
}
HWY_INLINE void store_bf16(VF v, void* p) { hn::StoreU(hn::TruncateTo(U16(), bf16_bits(v)), U16(), static_cast<uint16_t*>(p)); }
HWY_INLINE VF round_bf16(VF v) { return hn::BitCast(F32(), hn::ShiftLeft<16>(bf16_bits(v))); }

// 2 * kLanes consecutive bf16 values, separated into even and odd positions: no shuffles, and the values of a rotation pair are in the same
// lane.
HWY_INLINE void load_bf16_pairs(const void* p, VF& even, VF& odd) {
  const U32 du;
  const VU both = hn::LoadU(du, static_cast<const uint32_t*>(p));
  even = hn::BitCast(F32(), hn::ShiftLeft<16>(both));
  odd = hn::BitCast(F32(), hn::And(both, hn::Set(du, 0xFFFF0000u)));
}
// The inverse, rounding to nearest even. NaN stays NaN if its lower 16 bits are zero, as in everything computed from bf16 values.
HWY_INLINE void store_bf16_pairs(VF even, VF odd, void* p) {
  const U32 du;
  const auto rounded = [du](VF v) HWY_ATTR {
    const VU u = hn::BitCast(du, v);
    const VU lowest = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
    return hn::Add(u, hn::Add(lowest, hn::Set(du, 0x7FFFu)));
  };
  const VU high = hn::And(rounded(odd), hn::Set(du, 0xFFFF0000u));
  hn::StoreU(hn::Or(hn::ShiftRight<16>(rounded(even)), high), du, static_cast<uint32_t*>(p));
}

// e4m3 bits in the low byte of each lane.
HWY_INLINE VU e4m3_bits(VF v) {
  const F32 df;
  const U32 du;
  const VU u = hn::BitCast(du, v);
  const VU magnitude = hn::And(u, hn::Set(du, 0x7FFFFFFFu));
  const VF clamped = hn::Min(hn::BitCast(df, magnitude), hn::Set(df, kE4m3Max));
  const VU m = hn::BitCast(du, clamped);
  const VU odd = hn::And(hn::ShiftRight<20>(m), hn::Set(du, 1u));
  const VU normal = hn::Sub(hn::ShiftRight<20>(hn::Add(m, hn::Add(hn::Set(du, 0x7FFFFu), odd))), hn::Set(du, 120u << 3));
  // fp32 has steps of 2^-9, the subnormal step, in [2^14, 2^15).
  const VU subnormal = hn::Sub(hn::BitCast(du, hn::Add(clamped, hn::Set(df, 0x1p14f))), hn::Set(du, float_bits(0x1p14f)));
  const auto is_small = hn::RebindMask(du, hn::Lt(clamped, hn::Set(df, 0x1p-6f)));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  const VU unsigned_bits = hn::IfThenElse(is_nan, hn::Set(du, 0x7Fu), hn::IfThenElse(is_small, subnormal, normal));
  return hn::Or(unsigned_bits, hn::And(hn::ShiftRight<24>(u), hn::Set(du, 0x80u)));
}
HWY_INLINE void store_e4m3(VF v, void* p) { hn::StoreU(hn::TruncateTo(U8(), e4m3_bits(v)), U8(), static_cast<uint8_t*>(p)); }

// The values of e4m3 bits in the low byte of each lane.
HWY_INLINE VF e4m3_values(VU bits) {
  const F32 df;
  const U32 du;
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7Fu));
  // Right for normal values. A subnormal with mantissa m becomes 2^-7 (1 + m/8): twice that minus 2^-6 is m 2^-9, without an fp32
  // subnormal.
  const VF scaled = hn::BitCast(df, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(du, 120u << 23)));
  const VF subnormal = hn::Sub(hn::Add(scaled, scaled), hn::Set(df, 0x1p-6f));
  const VF finite = hn::IfThenElse(hn::RebindMask(df, hn::Lt(magnitude, hn::Set(du, 8u))), subnormal, scaled);
  const VU nan = hn::IfThenElseZero(hn::Eq(magnitude, hn::Set(du, 0x7Fu)), hn::Set(du, 0x7FC00000u));
  const VU sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(du, 0x80u)));
  return hn::BitCast(df, hn::Or(hn::Or(hn::BitCast(du, finite), nan), sign));
}
HWY_INLINE VF load_e4m3(const void* p) { return e4m3_values(hn::PromoteTo(U32(), hn::LoadU(U8(), static_cast<const uint8_t*>(p)))); }

// On targets with an instruction for fp16:
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define STRATA_E4M3_PAIRS 1
#else
#define STRATA_E4M3_PAIRS 0
#endif
#if STRATA_E4M3_PAIRS
// 2 * kLanes e4m3 values times 2^-8: the first half and the second. The bits of e4m3, shifted into fp16's position, are an fp16 of 2^-8
// times the value, also for subnormals, because the exponent bias is 15 instead of 7. NaN has all low seven bits set: only then does adding
// one carry into bit 7, which is the exponent's highest bit in fp16.
HWY_INLINE void load_e4m3_pairs(const void* p, VF& first, VF& second) {
  constexpr hn::CappedTag<int16_t, 2 * kLanes> di;
  constexpr hn::RebindToUnsigned<decltype(di)> du;
  constexpr hn::Rebind<int8_t, decltype(di)> d8;
  constexpr hn::Rebind<hwy::float16_t, F32> half;
  const auto e4m3 = hn::BitCast(du, hn::PromoteTo(di, hn::LoadU(d8, static_cast<const int8_t*>(p))));  // the sign in all bits above
  const auto carry = hn::Xor(hn::Add(e4m3, hn::Set(du, 1)), e4m3);
  const auto bit7 = hn::Set(du, 0x80);
  const auto bits = hn::ShiftLeft<7>(hn::Or(hn::And(bit7, carry), hn::AndNot(bit7, e4m3)));
  const hn::Half<decltype(du)> dh;
  first = hn::PromoteTo(F32(), hn::BitCast(half, hn::LowerHalf(dh, bits)));
  second = hn::PromoteTo(F32(), hn::BitCast(half, hn::UpperHalf(dh, bits)));
}
#endif

// max(floor, |x[i]|) over n values, n a multiple of kLanes; like the scalar version it ignores NaN.
template <class Load>
HWY_INLINE float amax_of(Load&& load, int64_t n, float floor) {
  const F32 df;
  VF result = hn::Set(df, floor);
  for (int64_t i = 0; i < n; i += kLanes) {
    const VF a = hn::Abs(load(i));
    result = hn::IfThenElse(hn::Gt(a, result), a, result);
  }
  return hn::GetLane(hn::MaxOfLanes(df, result));
}

// quantized[0, n) = e4m3 of the values load(i) under one power-of-two scale, whose exponent it returns. n is a multiple of kLanes.
template <class Load>
HWY_INLINE int store_e4m3_pow2(Load&& load, int64_t n, float floor, void* quantized) {
  const int exponent = e4m3_exponent(amax_of(load, n, floor));
  const VF inverse = hn::Set(F32(), pow2(-exponent));
  for (int64_t i = 0; i < n; i += kLanes) store_e4m3(hn::Mul(load(i), inverse), static_cast<uint8_t*>(quantized) + i);
  return exponent;
}

// The same of values divided by a scale.
template <class Load>
HWY_INLINE void store_e4m3_divided(Load&& load, int64_t n, float scale, void* quantized) {
  const VF divisor = hn::Set(F32(), scale);
  for (int64_t i = 0; i < n; i += kLanes) store_e4m3(hn::Div(load(i), divisor), static_cast<uint8_t*>(quantized) + i);
}

// Stored values as fp32.
HWY_INLINE VF load_values(const float* p) { return hn::LoadU(F32(), p); }
HWY_INLINE VF load_values(const Bf16* p) { return load_bf16(p); }

HWY_INLINE float sum(VF v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }

}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
