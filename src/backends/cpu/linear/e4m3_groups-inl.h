// Loads groups of e4m3 values as vectors of fp32, for the linear layers' inner loops. Included once per SIMD target.
#if defined(STRATA_LINEAR_E4M3_GROUPS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_LINEAR_E4M3_GROUPS_INL_H
#undef STRATA_LINEAR_E4M3_GROUPS_INL_H
#else
#define STRATA_LINEAR_E4M3_GROUPS_INL_H
#endif

#include "backends/cpu/linear/e4m3_tables.h"
#include "backends/cpu/simd_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL
constexpr int64_t kGroupVectors = 4;
constexpr float kE4m3Unit = 1.0f;
#else
constexpr int64_t kGroupVectors = 2;
constexpr float kE4m3Unit = STRATA_E4M3_PAIRS ? kE4m3PairUnit : 1.0f;
#endif
constexpr int64_t kGroup = kGroupVectors * kLanes;  // values that are widened together

// values[v][lane] * kE4m3Unit = e4m3 value v * kLanes + lane, exactly, including subnormals and NaN.
HWY_INLINE void load_e4m3_group(const E4m3* p, VF (&values)[kGroupVectors]) {
#if HWY_TARGET == HWY_AVX3_DL
  const E4m3Tables& t = kE4m3Tables;
  // Bytes are arranged so that two interleavings and a split of even from odd bf16 values leave the values in their original order. (The
  // form with a full mask is the same instruction; without it g++ 12 warns of its own headers.)
  const __m512i ordered = _mm512_maskz_permutexvar_epi8(~__mmask64{0}, _mm512_load_si512(t.order.data()), _mm512_loadu_si512(p));
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(t.low.data()), ordered, _mm512_load_si512(t.low.data() + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(t.high.data()), ordered, _mm512_load_si512(t.high.data() + 64));
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  const __m512i high = _mm512_ternarylogic_epi32(magnitude, ordered, _mm512_set1_epi8(static_cast<char>(0x80)), kOrAnd);
  const __m512i first = _mm512_unpacklo_epi8(low, high), second = _mm512_unpackhi_epi8(low, high);
  const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  values[0] = VF{_mm512_castsi512_ps(_mm512_slli_epi32(first, 16))};
  values[1] = VF{_mm512_castsi512_ps(_mm512_and_si512(first, odd))};
  values[2] = VF{_mm512_castsi512_ps(_mm512_slli_epi32(second, 16))};
  values[3] = VF{_mm512_castsi512_ps(_mm512_and_si512(second, odd))};
#elif STRATA_E4M3_PAIRS
  load_e4m3_pairs(p, values[0], values[1]);
#else
  values[0] = load_e4m3(p), values[1] = load_e4m3(p + kLanes);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
