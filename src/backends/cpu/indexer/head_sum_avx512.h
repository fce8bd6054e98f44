// sum_h w[h] relu(c[h]) of 16 rows whose products have heads as vector lanes (AVX-512). Included inside a target region.
// Per 16 rows and 64 heads: 64 max, 64 fma, and 45 operations that add up the lanes of 16 vectors and put the sums into one.
#pragma once

namespace strata::cpu::indexer {
namespace {

// max with the product second: a NaN product stays NaN.
inline __m512 relu(__m512 v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }

// 128-bit lane l: the sums of lane l of a, b, c, d.
inline __m512 sum_quad(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  return _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
}
// Four results of sum_quad to the sums of their 16 vectors, in order.
inline __m512 sum_quads(const __m512 q[4]) {
  const __m512 x = _mm512_add_ps(_mm512_shuffle_f32x4(q[0], q[1], 0x88), _mm512_shuffle_f32x4(q[0], q[1], 0xDD));
  const __m512 y = _mm512_add_ps(_mm512_shuffle_f32x4(q[2], q[3], 0x88), _mm512_shuffle_f32x4(q[2], q[3], 0xDD));
  return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
}

// The scores of 16 rows: the sums over this pass's heads and the earlier passes, times the row scales in the last pass.
inline void finish_group(const __m512 quads[4], bool first_pass, bool last_pass, const float* scale, float* out) {
  __m512 sum = sum_quads(quads);
  if (!first_pass) sum = _mm512_add_ps(sum, _mm512_loadu_ps(out));
  if (last_pass) sum = _mm512_mul_ps(sum, _mm512_loadu_ps(scale));
  _mm512_storeu_ps(out, sum);
}

}  // namespace
}  // namespace strata::cpu::indexer
