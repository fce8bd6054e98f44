// Softmax statistics and probabilities for a block of logits, and the states into which blocks are combined (AVX-512).
// Included inside a target region, like dequant_avx512.h. Heads are the vector lanes, so nothing is ever reduced horizontally: a head tile
// is 16 heads, its logits are [row][16] fp32.
//
// Per row and head tile: multiply, max (fused with the products that made the logits), then load, fma, reduce, 5 fma, scalef, add, and half
// of (cvtne2ps2bf16, vpermw) + 2 shuffles of the transposition: about 17 vector operations by this count. They do not run concurrently with
// tile products.
#pragma once

#include "backends/cpu/transpose_avx512.h"

namespace strata::cpu {
namespace {

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.693147180559945309417f;

// 2^t for t <= about 127; relative error below 2e-7; 2^-inf = 0, NaN stays NaN.
// 2^t = scalef(p(f), t) with f = t - floor(t), p the degree-5 minimax fit
// (relative error 8.3e-8) of 2^f on [0, 1) with p(0) = 1.
inline __m512 exp2_ps(__m512 t) {
  const __m512 f = _mm512_reduce_ps(t, 0x09);  // t - floor(t)
  __m512 p = _mm512_set1_ps(0.00186713005f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00901703071f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0557999127f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240164444f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693151295f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, t);
}

// A maximum of -inf (every logit is -inf) must not give inf - inf.
inline __m512 finite_or_zero(__m512 m) {
  const __mmask16 low = _mm512_cmp_ps_mask(m, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ);
  return _mm512_mask_mov_ps(m, low, _mm512_setzero_ps());
}

// max2 <- max(max2, logit * scale2) over rows; a NaN logit leaves the maximum unchanged and shows in the sum instead.
inline void update_max(const float* logits, int rows, float scale2, float* max2) {
  const __m512 s = _mm512_set1_ps(scale2);
  __m512 m0 = _mm512_load_ps(max2), m1 = m0;
  int r = 0;
  for (; r + 2 <= rows; r += 2) {
    m0 = _mm512_max_ps(_mm512_mul_ps(_mm512_load_ps(logits + r * 16), s), m0);
    m1 = _mm512_max_ps(_mm512_mul_ps(_mm512_load_ps(logits + r * 16 + 16), s), m1);
  }
  if (r < rows) m0 = _mm512_max_ps(_mm512_mul_ps(_mm512_load_ps(logits + r * 16), s), m0);
  _mm512_store_ps(max2, _mm512_max_ps(m0, m1));
}

// In: t[j] dword h = pair j of head h. Out: row h of `tile` = the 16 pairs of head h (an A tile, 16 heads x 32 rows).
inline void store_transposed(__m512i t[16], std::byte* tile) {
  transpose_dwords(t);
#pragma GCC unroll 16
  for (int h = 0; h < 16; ++h) _mm512_store_si512(tile + h * 64, t[h]);
}

// exp of one head tile's logits: sums to sum[16], bf16 A tiles of 32 rows (zero beyond `rows`) to `tiles`.
inline void probabilities(const float* logits, int rows, float scale2, const float* max2, float* sum, std::byte* tiles) {
  const __m512 s = _mm512_set1_ps(scale2), m = finite_or_zero(_mm512_load_ps(max2));
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                         18, 2, 17, 1, 16, 0);
  __m512 z0 = _mm512_setzero_ps(), z1 = z0;
  for (int r0 = 0; r0 < rows; r0 += 32) {
    __m512i t[16];
    if (rows - r0 >= 32) {
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
        const float* l = logits + (r0 + 2 * j) * 16;
        const __m512 p0 = exp2_ps(_mm512_fmsub_ps(_mm512_load_ps(l), s, m));
        const __m512 p1 = exp2_ps(_mm512_fmsub_ps(_mm512_load_ps(l + 16), s, m));
        z0 = _mm512_add_ps(z0, p0);
        z1 = _mm512_add_ps(z1, p1);
        t[j] = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(p1, p0));
      }
    } else {
      for (int j = 0; j < 16; ++j) {
        const float* l = logits + (r0 + 2 * j) * 16;
        __m512 p0 = _mm512_setzero_ps(), p1 = p0;
        if (r0 + 2 * j < rows) p0 = exp2_ps(_mm512_fmsub_ps(_mm512_load_ps(l), s, m));
        if (r0 + 2 * j + 1 < rows) p1 = exp2_ps(_mm512_fmsub_ps(_mm512_load_ps(l + 16), s, m));
        z0 = _mm512_add_ps(z0, p0);
        z1 = _mm512_add_ps(z1, p1);
        t[j] = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(p1, p0));
      }
    }
    store_transposed(t, tiles + static_cast<std::size_t>(r0 / 32) * 1024);
  }
  _mm512_store_ps(sum, _mm512_add_ps(z0, z1));
}

// Combines a block (or a partial result) with the earlier ones: x = x * old + y * fresh. The operations and their order are the same for a
// block in registers and for another thread's memory, so the result is the same.
inline __m512 combined(__m512 into, __m512 old, __m512 from, __m512 fresh) {
  return _mm512_fmadd_ps(from, fresh, _mm512_mul_ps(into, old));
}

// Updates max2 and sum of 16 heads; returns the factors for the accumulators.
inline void combine_statistics(float* max2, float* sum, const float* from_max2, const float* from_sum, float* old, float* fresh) {
  const __m512 a = _mm512_load_ps(max2), b = _mm512_load_ps(from_max2);
  const __m512 m = _mm512_max_ps(a, b), base = finite_or_zero(m);
  const __m512 fa = exp2_ps(_mm512_sub_ps(a, base)), fb = exp2_ps(_mm512_sub_ps(b, base));
  _mm512_store_ps(max2, m);
  _mm512_store_ps(sum, combined(_mm512_load_ps(sum), fa, _mm512_load_ps(from_sum), fb));
  _mm512_store_ps(old, fa);
  _mm512_store_ps(fresh, fb);
}

}  // namespace
}  // namespace strata::cpu
