// A matrix of 16 x 16 dwords in AVX-512 vectors. Included inside a target region; in an unnamed namespace, so that no other translation
// unit can end up with a copy built for this target.
#pragma once

namespace strata::cpu {
namespace {

// 16 vectors of 16 dwords as a matrix, in place: v[i][j] <-> v[j][i].
inline void transpose_dwords(__m512i v[16]) {
  __m512i u[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    u[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    u[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // v[i + k], lane l: column 4l + k of rows i..i+3
    v[i] = _mm512_unpacklo_epi64(u[i], u[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(u[i + 1], u[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(u[i + 1], u[i + 3]);
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m512i a = _mm512_shuffle_i32x4(v[k], v[4 + k], 0x44), b = _mm512_shuffle_i32x4(v[k], v[4 + k], 0xEE);
    const __m512i c = _mm512_shuffle_i32x4(v[8 + k], v[12 + k], 0x44), d = _mm512_shuffle_i32x4(v[8 + k], v[12 + k], 0xEE);
    u[k] = _mm512_shuffle_i32x4(a, c, 0x88);
    u[4 + k] = _mm512_shuffle_i32x4(a, c, 0xDD);
    u[8 + k] = _mm512_shuffle_i32x4(b, d, 0x88);
    u[12 + k] = _mm512_shuffle_i32x4(b, d, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = u[i];
}

}  // namespace
}  // namespace strata::cpu
