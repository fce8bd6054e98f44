// Key rows to bf16 operands with AVX-512 (F, BW, DQ, VL, VBMI, BF16). Included inside a target region; every function
// is in an unnamed namespace, so no other translation unit can end up with a copy built for this target.
//
// Rows are written two at a time, twice each:
//   K: row-major 16x32 tiles, tile row = key row            (A operand of S^T = K Q^T)
//   V: the two rows interleaved element by element ("VNNI")  (B operand of O = P V)
// `vpunpck{l,h}wd` does the interleaving inside 128-bit lanes, so a V tile does not hold 16 consecutive dims: of the 32
// dims of a chunk the "lo" tile has 8l + 0..3 and the "hi" tile 8l + 4..7 (lane l). Whoever reads C tiles undoes that.
//
// e4m3 to bf16: two `vpermi2b` over 128-byte tables give the bytes of the bf16 magnitude of all 64 codes of a group,
// already multiplied by 2^119; subtracting (246 - scale byte) << 7 makes the exponent right. min(magnitude, that) is
// subtracted, which leaves zeros zero. Good for scale bytes 10..246, where no value leaves bf16's normal range; other
// rows and rows with NaN codes take the scalar decoder. Per group of 64 codes and row: 20 vector operations (1 vpermq,
// 6 for the look-ups, 1 sign, 2 unpack, 6 scale, 2 NaN test, 2 interleave), about 10-11 cycles on two vector ports;
// 75-80 cycles a V4 row, under the 128 cycles of tile products that 64 heads need for it.
#pragma once

namespace strata::cpu {
namespace {

struct E4m3Table {
  alignas(64) std::uint8_t lo[128], hi[128];  // bf16(|code|) << by 119 binades; zero stays zero
  constexpr E4m3Table() : lo(), hi() {
    for (int c = 0; c < 128; ++c) {
      int exponent = c >> 3, mantissa = c & 7;
      if (c == 0) continue;
      if (exponent == 0) {
        exponent = 1;
        while (mantissa < 8) mantissa *= 2, --exponent;
        mantissa &= 7;
      }
      const int bits = (exponent + 120 + 119) << 7 | mantissa << 4;
      lo[c] = static_cast<std::uint8_t>(bits & 255);
      hi[c] = static_cast<std::uint8_t>(bits >> 8);
    }
  }
};
constexpr E4m3Table kE4m3Table;

// Where a pair of rows goes. K tiles of successive chunks of 32 dims are 1 KB apart, V tile pairs v_step apart.
struct PairTarget {
  std::byte* k;
  std::byte* v;
  std::size_t v_step;
};

inline void store_k(const PairTarget& t, int chunk, __m512i a, __m512i b) {
  std::byte* p = t.k + static_cast<std::size_t>(chunk) * 1024;
  _mm512_store_si512(p, a);
  _mm512_store_si512(p + 64, b);
}
inline void store_v(const PairTarget& t, int chunk, __m512i a, __m512i b) {
  std::byte* p = t.v + static_cast<std::size_t>(chunk) * t.v_step;
  _mm512_store_si512(p, _mm512_unpacklo_epi16(a, b));
  _mm512_store_si512(p + 1024, _mm512_unpackhi_epi16(a, b));
}

// Rows already in bf16. b may be null: the second row of the pair does not exist and its V half is zero.
inline void write_bf16_pair(const std::uint16_t* a, const std::uint16_t* b, int head_dim, int value_dim,
                            const PairTarget& t) {
  const int k_chunks = head_dim / 32, v_chunks = value_dim / 32;
  for (int c = 0; c < k_chunks; ++c) {
    const __m512i x = _mm512_loadu_si512(a + c * 32);
    const __m512i y = b ? _mm512_loadu_si512(b + c * 32) : _mm512_setzero_si512();
    store_k(t, c, x, y);
    if (c < v_chunks) store_v(t, c, x, y);
  }
}

inline __m512i spread_qwords(const std::byte* codes) {
  // After this, unpacklo/unpackhi of bytes deliver codes 0..31 / 32..63 in their natural order.
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), _mm512_loadu_si512(codes));
}

struct Decoded {
  __m512i lo, hi;  // codes 0..31 and 32..63 as bf16
};

// 64 codes, times 2^119 (sign included).
inline Decoded look_up(__m512i codes) {
  const __m512i lo = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Table.lo), codes,
                                              _mm512_load_si512(kE4m3Table.lo + 64));
  __m512i hi = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Table.hi), codes,
                                        _mm512_load_si512(kE4m3Table.hi + 64));
  hi = _mm512_ternarylogic_epi32(hi, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);  // hi | (codes & 0x80)
  return {_mm512_unpacklo_epi8(lo, hi), _mm512_unpackhi_epi8(lo, hi)};
}

inline __m512i lower_exponent(__m512i w, __m512i by) {
  return _mm512_sub_epi16(w, _mm512_min_epu16(_mm512_and_si512(w, _mm512_set1_epi16(0x7FFF)), by));
}

// (246 - b) << 7 for each of a row's scale bytes, twice in a dword so that it can be broadcast straight from memory.
// False when a byte is outside the fast range.
inline bool exponent_drops(const std::byte* scales, std::uint32_t out[8]) {
  const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
  const __m128i from10 = _mm_sub_epi8(b, _mm_set1_epi8(10));
  const __m128i top = _mm_set1_epi8(static_cast<char>(236));
  const int ok = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(from10, top), top));
  const __m128i w = _mm_slli_epi16(_mm_sub_epi16(_mm_set1_epi16(246), _mm_cvtepu8_epi16(b)), 7);
  _mm_store_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi16(w, w));
  _mm_store_si128(reinterpret_cast<__m128i*>(out) + 1, _mm_unpackhi_epi16(w, w));
  return (ok & 0x7F) == 0x7F;
}

// Two V4 rows. False when the scalar decoder has to do them (then what was written is rubbish).
inline bool write_v4_pair(const RowRef& a, const RowRef& b, const PairTarget& t) {
  alignas(16) std::uint32_t drop_a[8], drop_b[8];
  const bool ok_a = exponent_drops(a.scales, drop_a), ok_b = exponent_drops(b.scales, drop_b);
  if (!(ok_a && ok_b)) return false;
  __m512i largest = _mm512_setzero_si512();  // 2 * code without sign; 0xFE is NaN
#pragma GCC unroll 7
  for (int g = 0; g < 7; ++g) {
    const __m512i xa = spread_qwords(a.data + g * 64), xb = spread_qwords(b.data + g * 64);
    largest = _mm512_max_epu8(largest, _mm512_add_epi8(xa, xa));
    largest = _mm512_max_epu8(largest, _mm512_add_epi8(xb, xb));
    Decoded da = look_up(xa), db = look_up(xb);
    const __m512i sa = _mm512_set1_epi32(static_cast<int>(drop_a[g]));
    const __m512i sb = _mm512_set1_epi32(static_cast<int>(drop_b[g]));
    da = {lower_exponent(da.lo, sa), lower_exponent(da.hi, sa)};
    db = {lower_exponent(db.lo, sb), lower_exponent(db.hi, sb)};
    store_k(t, 2 * g, da.lo, db.lo);
    store_v(t, 2 * g, da.lo, db.lo);
    store_k(t, 2 * g + 1, da.hi, db.hi);
    store_v(t, 2 * g + 1, da.hi, db.hi);
  }
  for (int c = 0; c < 2; ++c) {
    const __m512i x = _mm512_loadu_si512(a.data + 448 + c * 64), y = _mm512_loadu_si512(b.data + 448 + c * 64);
    store_k(t, 14 + c, x, y);
    store_v(t, 14 + c, x, y);
  }
  return _mm512_cmpeq_epu8_mask(largest, _mm512_set1_epi8(static_cast<char>(0xFE))) == 0;
}

// codes * scale as bf16, any scale: through fp32, as the scalar decoder does it.
inline bool decode_scaled(const std::byte* codes, int count, float scale, std::uint16_t* out) {
  const __m512 s = _mm512_set1_ps(scale);
  const __m512i back = _mm512_set1_epi16(119 << 7);  // the table's 2^119
  __mmask64 nan = 0;
  for (int i = 0; i < count; i += 64) {
    const int left = count - i;
    const __m512i raw = left >= 64 ? _mm512_loadu_si512(codes + i) : _mm512_maskz_loadu_epi8((1ull << left) - 1, codes + i);
    const __m512i x = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), raw);
    nan |= _mm512_cmpeq_epu8_mask(_mm512_add_epi8(x, x), _mm512_set1_epi8(static_cast<char>(0xFE)));
    const Decoded d = look_up(x);
    const __m512i half[2] = {lower_exponent(d.lo, back), lower_exponent(d.hi, back)};
    for (int h = 0; h < 2 && i + 32 * h < count; ++h) {
      const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(half[h], 16));
      const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(half[h], _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
      // even products to the low words, odd ones to the high words: round both, then interleave.
      const auto packed = (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(odd, s), _mm512_mul_ps(even, s));
      const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                             21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
      _mm512_storeu_si512(out + i + 32 * h, _mm512_permutexvar_epi16(order, packed));
    }
  }
  return nan == 0;
}

// The scales for which decode_scaled agrees with the scalar decoder: no product is subnormal or infinite.
inline bool scale_is_plain(float s) { return std::fabs(s) > 0x1p-116f && std::fabs(s) < 0x1p118f; }

// One row as bf16: its own memory, or `temp` after decoding.
inline const std::uint16_t* row_as_bf16(const RowSource& src, const RowRef& r, int head_dim, std::uint16_t* temp) {
  bool done = false;
  if (src.format == KvFormat::bf16) return reinterpret_cast<const std::uint16_t*>(r.data);
  if (src.format == KvFormat::fp8_tensor && scale_is_plain(src.scale)) {
    done = decode_scaled(r.data, head_dim, src.scale, temp);
  } else if (src.format == KvFormat::fp8_ds_mla) {
    float s[4];
    std::memcpy(s, r.data + 512, 16);
    done = true;
    for (int g = 0; g < 4 && done; ++g)
      done = scale_is_plain(s[g]) && decode_scaled(r.data + 128 * g, 128, s[g], temp + 128 * g);
    std::memcpy(temp + 512, r.data + 528, 128);
  }
  if (!done) decode_row_scalar(src, r.data, r.scales, head_dim, temp);
  return temp;
}

}  // namespace
}  // namespace strata::cpu
