// Key rows to bf16 operands with AVX-512 (F, BW, DQ, VL, VBMI, BF16). Included inside a target region; every function
// is in an unnamed namespace, so no other translation unit can end up with a copy built for this target.
//
// A sub-block is 32 rows; the unit of work is a group of 64 dims of two rows ("a pair"), written row-major in 16x32 tiles,
// tile row = key row: the A operand of S^T = K Q^T.
//
// e4m3 to bf16: two `vpermi2b` over 128-byte tables give the bytes of the bf16 magnitudes of 64 values, already multiplied by 2^119.
// Subtracting (246 - scale byte) << 7 corrects the exponent; min(magnitude, that) is subtracted, which keeps zeros zero. Valid for scale
// bytes 10..246, where no value leaves bf16's normal range. Other scales, and groups with NaNs, use the scalar decoder. Per 64 values: 1
// vpermq, 6 operations for the look-ups, 1 sign, 2 unpack, 6 scale, 1.5 NaN test: about 9 cycles on two vector ports, 70 cycles a V4 row.
#pragma once

namespace strata::cpu {
namespace {

inline constexpr int kSubRows = 32;

struct E4m3Table {
  alignas(64) std::uint8_t lo[128], hi[128];  // bf16(|value| * 2^119); zero stays zero
  constexpr E4m3Table() : lo(), hi() {
    for (int c = 1; c < 128; ++c) {
      int exponent = c >> 3, mantissa = c & 7;
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

alignas(64) constexpr std::byte kZeroRow[2 * 640]{};

enum class SubFormat { v4, bf16, any };

// The rows of a sub-block, ready to be decoded. Rows that do not exist are rows of zeros.
struct SubRows {
  SubFormat format;
  std::uint32_t slow;  // bit i: the scale bytes of (V4) row i are outside the fast range
  const std::byte* data[kSubRows];
  const std::byte* scales[kSubRows];
  const RowSource* source[kSubRows];
  alignas(64) std::uint32_t drop[8][kSubRows];  // V4, by group: (246 - scale byte) << 7, twice in a dword
};

constexpr RowSource kZeroSource{kZeroRow, KvFormat::bf16, 0, 0, 0, 1, 1.0f};

inline void prepare_sub_rows(const AttendShape& shape, const BlockRows& block, int first, SubRows& s) {
  const int count = std::min(kSubRows, block.count - first);
  int v4 = kSubRows - count, bf16 = v4;
  s.slow = 0;
  for (int i = 0; i < count; ++i) {
    const RowRef& r = block.row[first + i];
    s.data[i] = r.data;
    s.scales[i] = r.scales;
    s.source[i] = &shape.source[first + i >= block.scope0_count];
    if (s.source[i]->format == KvFormat::fp8_ds_mla_v4) {
      ++v4;
      const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(r.scales));
      const __m128i top = _mm_set1_epi8(static_cast<char>(236));
      const int ok = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(_mm_sub_epi8(b, _mm_set1_epi8(10)), top), top));
      s.slow |= static_cast<std::uint32_t>((ok & 0x7F) != 0x7F) << i;
      const __m128i w = _mm_slli_epi16(_mm_sub_epi16(_mm_set1_epi16(246), _mm_cvtepu8_epi16(b)), 7);
      alignas(16) std::uint32_t d[8];
      _mm_store_si128(reinterpret_cast<__m128i*>(d), _mm_unpacklo_epi16(w, w));
      _mm_store_si128(reinterpret_cast<__m128i*>(d) + 1, _mm_unpackhi_epi16(w, w));
      for (int g = 0; g < kV4NumBlocks; ++g) s.drop[g][i] = d[g];
    } else if (s.source[i]->format == KvFormat::bf16) {
      ++bf16;
    }
  }
  for (int i = count; i < kSubRows; ++i) {  // zeros as V4 values (with drop 0) and as bf16 values alike
    s.data[i] = s.scales[i] = kZeroRow;
    s.source[i] = &kZeroSource;
    for (int g = 0; g < kV4NumBlocks; ++g) s.drop[g][i] = 0;
  }
  s.format = v4 == kSubRows && s.slow == 0 ? SubFormat::v4 : bf16 == kSubRows ? SubFormat::bf16 : SubFormat::any;
}

struct Dims64 {
  __m512i lo, hi;  // dims 0..31 and 32..63 of the unit as bf16
};

inline Dims64 load_bf16(const std::byte* p) { return {_mm512_loadu_si512(p), _mm512_loadu_si512(p + 64)}; }

inline __m512i load_e4m3(const std::byte* e4m3) {
  // After this, unpacklo/unpackhi of bytes deliver values 0..31 / 32..63 in their natural order.
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), _mm512_loadu_si512(e4m3));
}

inline bool any_nan(__m512i twice_bits) {  // without the sign bit; 0xFE is NaN
  return _mm512_cmpeq_epu8_mask(twice_bits, _mm512_set1_epi8(static_cast<char>(0xFE))) != 0;
}

// 64 e4m3 values times 2^119.
inline Dims64 look_up(__m512i e4m3) {
  const __m512i lo = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Table.lo), e4m3, _mm512_load_si512(kE4m3Table.lo + 64));
  __m512i hi = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Table.hi), e4m3, _mm512_load_si512(kE4m3Table.hi + 64));
  hi = _mm512_ternarylogic_epi32(hi, e4m3, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);  // hi | (e4m3 & 0x80)
  return {_mm512_unpacklo_epi8(lo, hi), _mm512_unpackhi_epi8(lo, hi)};
}

inline __m512i lower_exponent(__m512i w, __m512i by) {
  return _mm512_sub_epi16(w, _mm512_min_epu16(_mm512_and_si512(w, _mm512_set1_epi16(0x7FFF)), by));
}
inline Dims64 lower_exponents(Dims64 d, __m512i by) { return {lower_exponent(d.lo, by), lower_exponent(d.hi, by)}; }

// bf16(w * scale), through fp32 as the scalar decoder does it.
inline __m512i scale_bf16(__m512i w, __m512 scale) {
  const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  const auto packed = (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(odd, scale), _mm512_mul_ps(even, scale));
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                         18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, packed);
}

// The scales for which scale_bf16 agrees with the scalar decoder: no product is subnormal or infinite.
inline bool scale_is_plain(float s) { return std::fabs(s) > 0x1p-116f && std::fabs(s) < 0x1p118f; }

__attribute__((noinline)) Dims64 decode64_scalar(const RowSource& src, const std::byte* data, const std::byte* scales, int group) {
  alignas(64) std::uint16_t v[64];
  decode_group(src, data, scales, group, v);
  return {_mm512_load_si512(v), _mm512_load_si512(v + 32)};
}

inline Dims64 decode64_scaled(const RowSource& src, const std::byte* data, int group, float scale) {
  const __m512i x = load_e4m3(data + group * 64);
  if (!scale_is_plain(scale) || any_nan(_mm512_add_epi8(x, x))) return decode64_scalar(src, data, nullptr, group);
  const Dims64 d = lower_exponents(look_up(x), _mm512_set1_epi16(119 << 7));
  return {scale_bf16(d.lo, _mm512_set1_ps(scale)), scale_bf16(d.hi, _mm512_set1_ps(scale))};
}

// Dimensions 64 * group .. + 63 of row i, any format.
inline Dims64 decode64(const SubRows& s, int i, int group) {
  const std::byte* data = s.data[i];
  const RowSource& src = *s.source[i];
  switch (src.format) {
    case KvFormat::fp8_tensor: return decode64_scaled(src, data, group, src.scale);
    case KvFormat::fp8_ds_mla: {
      if (group == kMlaLatentDim / 64) return load_bf16(data + kMlaRopeOffset);
      float scale;
      std::memcpy(&scale, data + kMlaScaleOffset + 4 * (group / 2), 4);
      return decode64_scaled(src, data, group, scale);
    }
    case KvFormat::fp8_ds_mla_v4: {
      if (group == kV4NumBlocks) return load_bf16(data + kV4NopeDim);
      const __m512i x = load_e4m3(data + group * 64);
      if ((s.slow >> i & 1) || any_nan(_mm512_add_epi8(x, x))) return decode64_scalar(src, data, s.scales[i], group);
      return lower_exponents(look_up(x), _mm512_set1_epi32(static_cast<int>(s.drop[group][i])));
    }
    default: return load_bf16(data + group * 128);
  }
}

__attribute__((noinline)) void decode64_pair(const SubRows& s, int i, int group, Dims64& a, Dims64& b) {
  a = decode64(s, i, group);
  b = decode64(s, i + 1, group);
}

// Rows 2p and 2p + 1, one group of 64 dims. k: the group's tiles [chunk of 32 dims][row tile].
template <SubFormat kFormat>
__attribute__((always_inline)) inline void decode_pair(const SubRows& s, int p, int group, std::byte* k) {
  const int i = 2 * p;
  Dims64 a, b;
  if constexpr (kFormat == SubFormat::bf16) {
    a = load_bf16(s.data[i] + group * 128);
    b = load_bf16(s.data[i + 1] + group * 128);
  } else if constexpr (kFormat == SubFormat::v4) {
    if (group == kV4NumBlocks) {
      a = load_bf16(s.data[i] + kV4NopeDim);
      b = load_bf16(s.data[i + 1] + kV4NopeDim);
    } else {
      const __m512i x = load_e4m3(s.data[i] + group * 64), y = load_e4m3(s.data[i + 1] + group * 64);
      if (any_nan(_mm512_max_epu8(_mm512_add_epi8(x, x), _mm512_add_epi8(y, y)))) [[unlikely]] {
        decode64_pair(s, i, group, a, b);
      } else {
        a = lower_exponents(look_up(x), _mm512_set1_epi32(static_cast<int>(s.drop[group][i])));
        b = lower_exponents(look_up(y), _mm512_set1_epi32(static_cast<int>(s.drop[group][i + 1])));
      }
    }
  } else {
    decode64_pair(s, i, group, a, b);
  }
  std::byte* kp = k + p * 128;
  _mm512_store_si512(kp, a.lo);
  _mm512_store_si512(kp + 64, b.lo);
  _mm512_store_si512(kp + 2048, a.hi);
  _mm512_store_si512(kp + 2048 + 64, b.hi);
}

// A thread's work other than tile products: decodes pairs of rows of a unit (one or more groups), one pair a step, and prefetches the same
// dimensions of the rows that come 32 rows later.
template <SubFormat kFormat>
class UnitDecoder {
 public:
  UnitDecoder(const SubRows& rows, const std::byte* const* ahead, int group, int groups, std::byte* k)
      : rows_(rows), ahead_(ahead), group_(group), left_(groups * (kSubRows / 2)), k_(k) {}
  int left() const { return left_; }
  __attribute__((always_inline)) void step() {
    decode_pair<kFormat>(rows_, p_, group_, k_);
    for (int i = 2 * p_; i < 2 * p_ + 2; ++i) {
      if constexpr (kFormat == SubFormat::bf16) {
        fetch(ahead_[i] + group_ * 128);
        fetch(ahead_[i] + group_ * 128 + 64);
      } else {
        fetch(ahead_[i] + group_ * 64);
      }
    }
    --left_;
    if (++p_ == kSubRows / 2) p_ = 0, ++group_, k_ += 4096;
  }
  // Not the builtin: g++ takes a function that only prefetches for one without effects and drops the call.
  static void fetch(const std::byte* p) { __asm__ volatile("prefetcht0 %0" : : "m"(*p)); }

 private:
  const SubRows& rows_;
  const std::byte* const* ahead_;
  int p_ = 0, group_, left_;
  std::byte* k_;
};

// V of 32 dims, from K: pairs of rows interleaved element by element ("VNNI"), the B operand of O = P V. vpunpck{l,h}wd
// interleaves inside 128-bit lanes, so a V tile does not hold 16 consecutive dims: of the 32 dims the "lo" tile has
// 8l + 0..3 and the "hi" tile 8l + 4..7 (lane l); finish_partials undoes that.
class ValueBuilder {
 public:
  // k: the tiles of the chunk in the first sub-block, k_step bytes between sub-blocks; v: [sub-block][lo, hi].
  ValueBuilder(const std::byte* k, std::size_t k_step, int subs, std::byte* v)
      : k_(k), k_step_(k_step), v_(v), left_(subs * (kSubRows / 2)) {}
  int left() const { return left_; }
  __attribute__((always_inline)) void step() {
    const __m512i a = _mm512_load_si512(k_ + p_ * 128), b = _mm512_load_si512(k_ + p_ * 128 + 64);
    _mm512_store_si512(v_ + p_ * 64, _mm512_unpacklo_epi16(a, b));
    _mm512_store_si512(v_ + p_ * 64 + 1024, _mm512_unpackhi_epi16(a, b));
    --left_;
    if (++p_ == kSubRows / 2) p_ = 0, k_ += k_step_, v_ += 2048;
  }

 private:
  const std::byte* k_;
  std::size_t k_step_;
  std::byte* v_;
  int p_ = 0, left_;
};

}  // namespace
}  // namespace strata::cpu
