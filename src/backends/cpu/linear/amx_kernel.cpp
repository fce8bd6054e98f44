// Floor: four TDPBF16PS of 16 cycles per step and pair of tiles, 2.75 TFLOP/s a core at 2.7 GHz; operands come from L2, which bounds it to
// about half of that. With few tokens: N*K bytes of e4m3 (bf16: twice that) from memory.
//
// e4m3 to bf16. Both are sign, exponent, mantissa, and adding 120 to the exponent is a rearrangement of bits: exponent e3 e2 e1 e0 becomes
// e3 !e3 !e3 !e3 !e3 e2 e1 e0. So each byte of the bf16 is an affine map over GF(2) of the e4m3 byte, one instruction for 64 values
// (GF2P8AFFINEQB), and a power-of-two scale is an addition to the exponent. Zeros, subnormals and NaN have no such form. Pairs of rows that
// have one (packing marks them, about one in a hundred) use a table of the 128 magnitudes times the scale. Decoding runs two steps ahead of
// the products, which hide its time.
// Scales that are not powers of two multiply fp32 sums (Task::steps_per_sum).
#if defined(__x86_64__)
#include "backends/cpu/linear/amx_kernel.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "backends/cpu/amx_tile.h"
#include "backends/cpu/avx512_target.h"
#include "formats/e4m3.h"
#include "formats/ue8m0.h"

STRATA_AVX512_BEGIN

namespace strata::cpu::amx {
namespace {

constexpr int64_t kStepBytes = 2048;  // two decoded B operands
constexpr int64_t kE4m3StepBytes = 1024;
constexpr int kPairs = 16;             // of rows of a step
constexpr int64_t kAhead = 2;          // steps between decoding and use: stores reach L1 before the tile loads
constexpr int64_t kPanelWidth = 32;    // features of a panel
constexpr int64_t kPrefetchSteps = 2;  // prefetch distance of weights: the hardware prefetcher stops at page ends
constexpr int64_t kRing = 4;           // decoded steps that are kept when no second pass needs them: 8 KB of L1
constexpr int64_t kStepsPerToken = 4;  // of a token's scale
static_assert(kRing > kAhead);

// The magnitudes of e4m3 bytes 0..127.
struct Magnitudes {
  alignas(64) float value[128];
  constexpr Magnitudes() : value() {
    for (int i = 0; i < 128; ++i) value[i] = to_float(E4m3{static_cast<uint8_t>(i)});
  }
};
constexpr Magnitudes kMagnitudes;

// The last steps of the last panel prefetch memory past the weight, which is harmless.
inline void prefetch(const std::byte* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(data) + i, _MM_HINT_T0);
}

// bf16 of the magnitudes times a scale, as two tables of bytes.
struct Table {
  __m512i low[2], high[2];
};

// (The forms with a full mask are the same instructions; the others make g++ 12 warn of its own headers.)
inline __m512i low_bytes(__m512i first, __m512i second) {
  return _mm512_maskz_inserti64x4(0xFF, _mm512_castsi256_si512(_mm512_maskz_cvtepi16_epi8(~0u, first)),
                                  _mm512_maskz_cvtepi16_epi8(~0u, second), 1);
}

Table make_table(float scale) {
  const __m512 factor = _mm512_set1_ps(scale);
  Table table;
  for (int half = 0; half < 2; ++half) {
    __m512i words[2];
    for (int i = 0; i < 2; ++i) {
      const float* const values = kMagnitudes.value + 64 * half + 32 * i;
      words[i] = reinterpret_cast<__m512i>(
          _mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_load_ps(values + 16), factor), _mm512_mul_ps(_mm512_load_ps(values), factor)));
    }
    table.low[half] = low_bytes(words[0], words[1]);
    table.high[half] = low_bytes(_mm512_srli_epi16(words[0], 8), _mm512_srli_epi16(words[1], 8));
  }
  return table;
}

int64_t decoded_offset(int64_t step, int64_t tiles) { return (tiles <= 2 ? step % kRing : step) * kStepBytes; }

// Decodes a panel step by step, in order.
class Decoder {
 public:
  explicit Decoder(const Task& task) : task_(task) {}

  void next() {
    if (step_ == task_.steps) return;
    if (task_.steps_per_sum != 0) {
      if (step_ == 0) set_scale(1);
    } else if (step_ % task_.steps_per_scale == 0) {
      set_scale(task_.scales[step_ / task_.steps_per_scale]);
    }
    const std::byte* const stored = task_.panel + step_ * kE4m3StepBytes;
    std::byte* const out = task_.decoded + decoded_offset(step_, task_.tiles);
    prefetch(stored + kPrefetchSteps * kE4m3StepBytes, kE4m3StepBytes);
    rearrange(stored, out);
    if (const unsigned mask = task_.masks[step_]; mask != 0) [[unlikely]]
      look_up(stored, mask, out);
    ++step_;
  }

 private:
  // A scale of operands_take.
  void set_scale(float scale) {
    const int exponent = static_cast<int>(float_bits(scale) >> 23) - 127;
    exponent_ = _mm512_set1_epi16(static_cast<int16_t>(exponent * 128));
    scale_ = scale;
    has_table_ = false;
  }

  static void store_rows(__m512i low, __m512i high, __m512i add, std::byte* out) {
    _mm512_store_si512(out, _mm512_add_epi16(_mm512_unpacklo_epi8(low, high), add));
    _mm512_store_si512(out + 64, _mm512_add_epi16(_mm512_unpackhi_epi8(low, high), add));
  }

  // Sixteen pairs of rows, as if no value were zero, subnormal or NaN.
  void rearrange(const std::byte* stored, std::byte* out) const {
    // Byte 7 - i of a matrix selects the bits whose parity is bit i of the result. Low byte: e0 m2 m1 m0 0 0 0 0.
    const __m512i low_map = _mm512_set1_epi64(0x0000000001020408);
    // High byte: sign e3 !e3 !e3 !e3 !e3 e2 e1, the negations by the constant.
    const __m512i high_map = _mm512_set1_epi64(0x1020404040404080);
    constexpr int kNegations = 0x3C;
#pragma GCC unroll 16
    for (int i = 0; i < kPairs; ++i) {
      const __m512i bytes = _mm512_loadu_si512(stored + 64 * i);
      store_rows(_mm512_gf2p8affine_epi64_epi8(bytes, low_map, 0), _mm512_gf2p8affine_epi64_epi8(bytes, high_map, kNegations), exponent_,
                 out + 128 * i);
    }
  }

  // The pairs of rows in `mask`, for any values.
  [[gnu::noinline]] void look_up(const std::byte* stored, unsigned mask, std::byte* out) {
    if (!has_table_) table_ = make_table(scale_);
    has_table_ = true;
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    for (; mask != 0; mask &= mask - 1) {
      const int i = std::countr_zero(mask);
      const __m512i bytes = _mm512_loadu_si512(stored + 64 * i);
      const __m512i low = _mm512_permutex2var_epi8(table_.low[0], bytes, table_.low[1]);
      const __m512i high = _mm512_permutex2var_epi8(table_.high[0], bytes, table_.high[1]);
      store_rows(low, _mm512_or_si512(high, _mm512_and_si512(bytes, sign)), _mm512_setzero_si512(), out + 128 * i);
    }
  }

  const Task& task_;
  int64_t step_ = 0;
  bool has_table_ = false;
  float scale_ = 0;
  __m512i exponent_{};
  Table table_{};
};

// One step: the sums of one or two tiles of tokens, in tiles 0, 1 and 2, 3.
template <bool kTwo>
inline void add_step(const std::byte* a, int64_t tile_bytes, const std::byte* b) {
  tile_load<4>(a, 64);
  tile_load<6>(b, 64);
  tile_dot_bf16<0, 4, 6>();
  tile_load<7>(b + kStepBytes / 2, 64);
  tile_dot_bf16<1, 4, 7>();
  if constexpr (kTwo) {
    tile_load<5>(a + tile_bytes, 64);
    tile_dot_bf16<2, 5, 6>();
    tile_dot_bf16<3, 5, 7>();
  }
}

// Prefetches result lines while the products run: rows of y lie in different pages, and stores would wait for each miss.
inline void prefetch_result(const Task& t, int64_t row) {
  const std::byte* const line = t.y + row * t.y_stride;
  __builtin_prefetch(line, 1);
  if (t.y_f32) __builtin_prefetch(line + 64, 1);
}

// Of one or two tiles of tokens.
struct alignas(64) Sums {
  float rows[2 * kTileRows][kPanelWidth];
};

inline void clear_tiles() {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
}

template <bool kTwo>
inline void store_tiles(Sums& s) {
  float(*const sums)[kPanelWidth] = s.rows;
  constexpr int64_t kStride = sizeof(sums[0]);
  tile_store<0>(sums[0], kStride);
  tile_store<1>(sums[0] + 16, kStride);
  if constexpr (kTwo) {
    tile_store<2>(sums[kTileRows], kStride);
    tile_store<3>(sums[kTileRows] + 16, kStride);
  }
}

// sums += scale * scale of the token * what the tiles hold, the block of channels that `step` is in. Rows [first, last) of the block.
template <bool kTwo>
inline void add_scaled(const Task& t, int64_t step, int64_t first, int64_t last, Sums& sums) {
  Sums partial;
  store_tiles<kTwo>(partial);
  clear_tiles();
  const float weight_scale = t.scales != nullptr ? t.scales[step / t.steps_per_scale] : 1;
  for (int64_t row = 0; row < last - first; ++row) {
    const float token_scale = t.token_scales != nullptr ? t.token_scales[(first + row) * t.token_scale_stride + step / kStepsPerToken] : 1;
    const __m512 scale = _mm512_set1_ps(weight_scale * token_scale);
    for (int half = 0; half < 2; ++half) {
      float* const sum = sums.rows[row] + 16 * half;
      _mm512_store_ps(sum, _mm512_fmadd_ps(_mm512_load_ps(partial.rows[row] + 16 * half), scale, _mm512_load_ps(sum)));
    }
  }
}

// Rows [first, last) of the block.
inline void store_result(const Task& t, const Sums& sums, int64_t first, int64_t last) {
  const __mmask32 columns = t.features >= kPanelWidth ? ~0u : (1u << t.features) - 1;
  for (int64_t row = first; row < last; ++row) {
    const float* const x = sums.rows[row - first];
    std::byte* const out = t.y + row * t.y_stride;
    const __m512 left = _mm512_load_ps(x), right = _mm512_load_ps(x + 16);
    if (t.y_f32) {
      _mm512_mask_storeu_ps(out, static_cast<__mmask16>(columns), left);
      _mm512_mask_storeu_ps(out + 64, static_cast<__mmask16>(columns >> 16), right);
    } else {
      _mm512_mask_storeu_epi16(out, columns, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(right, left)));
    }
  }
}

// The sums of one or two tiles from `tile` on. In the first pass over a panel its e4m3 values are decoded, ahead of their use.
template <bool kTwo, bool kScaled>
void add_steps(const Task& t, int64_t tile, Decoder& decoder) {
  const int64_t step_bytes = t.rows * 64, tile_bytes = t.steps * step_bytes;
  const std::byte* const a = t.a + tile * tile_bytes;
  const int64_t first = tile * t.rows, last = std::min(t.tokens, first + (kTwo ? 2 : 1) * t.rows);
  Sums sums;
  if constexpr (kScaled) std::fill_n(sums.rows[0], 2 * kTileRows * kPanelWidth, 0.0f);
  clear_tiles();
  for (int64_t step = 0; step < t.steps; ++step) {
    if (first + step < last) prefetch_result(t, first + step);
    if (tile == 0 && t.masks == nullptr) {
      prefetch(t.panel + (step + kPrefetchSteps) * kStepBytes, kStepBytes);
    } else if (tile == 0) {
      decoder.next();
    }
    const std::byte* const b = t.masks != nullptr ? t.decoded + decoded_offset(step, t.tiles) : t.panel + step * kStepBytes;
    add_step<kTwo>(a + step * step_bytes, tile_bytes, b);
    if constexpr (kScaled) {
      if ((step + 1) % t.steps_per_sum == 0 || step + 1 == t.steps) add_scaled<kTwo>(t, step, first, last, sums);
    }
  }
  if constexpr (!kScaled) store_tiles<kTwo>(sums);
  store_result(t, sums, first, last);
}

template <bool kScaled>
void add_tiles(const Task& t, Decoder& decoder) {
  // Cutting K so that B operands stay in L1 between tiles gains less than reloading the sums costs.
  for (int64_t tile = 0; tile < t.tiles; tile += 2) {
    if (tile + 1 < t.tiles) {
      add_steps<true, kScaled>(t, tile, decoder);
    } else {
      add_steps<false, kScaled>(t, tile, decoder);
    }
  }
}

}  // namespace

void multiply(const Task& t) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) config.rows[tile] = static_cast<uint8_t>(t.rows);  // sums and A; B has 16 rows always
  amx_begin(config);
  Decoder decoder(t);
  for (int64_t i = 0; t.masks != nullptr && i < kAhead; ++i) decoder.next();
  if (t.steps_per_sum != 0) {
    add_tiles<true>(t, decoder);
  } else {
    add_tiles<false>(t, decoder);
  }
  amx_end();
}

}  // namespace strata::cpu::amx
STRATA_AVX512_END
#endif
