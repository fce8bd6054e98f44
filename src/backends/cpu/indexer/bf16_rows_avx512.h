// Indexer rows to bf16, exactly, and packed queries (AVX-512 F, BW, DQ, VL, VBMI). Included inside a target region; every function is
// in an unnamed namespace, so that no other translation unit can end up with a copy built for this target.
//
// A decoded row is 128 bf16 in a permuted order that is cheap to produce. A dot product allows any order that queries and keys share, so
// queries go through the same decoder.
//   e4m3:  two `vpermi2b` over 128-byte tables give both bytes of the bf16 of 64 values, NaN included: 9 vector operations per 64.
//   e2m1:  `vpermw` over 16 values that include the scale; bit 4 of the index selects between the two blocks of a vector: 4 vector
//          operations per 32 values, and 7 per row for the scales. Values below 2^-126 become zero, as the bf16 products would make them
//          anyway. Scale byte 0, which no writer produces, counts as byte 1.
#pragma once

#include "backends/cpu/transpose_avx512.h"

namespace strata::cpu::indexer {
namespace {

struct E4m3Bytes {
  alignas(64) uint8_t low[128] = {}, high[128] = {};
  constexpr E4m3Bytes() {
    for (int i = 0; i < 128; ++i) {
      const uint32_t bits = float_bits(to_float(E4m3{static_cast<uint8_t>(i)}));
      low[i] = static_cast<uint8_t>(bits >> 16);
      high[i] = static_cast<uint8_t>(bits >> 24);
    }
  }
};
constexpr E4m3Bytes kE4m3Bytes;

struct E2m1Words {
  alignas(64) uint16_t word[32] = {};  // magnitudes; the sign is added after scaling
  constexpr E2m1Words() {
    for (int i = 0; i < 32; ++i) word[i] = static_cast<uint16_t>(float_bits(e2m1_to_float(static_cast<uint8_t>(i & 7))) >> 16);
  }
};
constexpr E2m1Words kE2m1Words;

inline void decode_e4m3_64(const uint8_t* e4m3, std::byte* out) {
  const __m512i values = _mm512_loadu_si512(e4m3);
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Bytes.low), values, _mm512_load_si512(kE4m3Bytes.low + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Bytes.high), values, _mm512_load_si512(kE4m3Bytes.high + 64));
  const __m512i high = _mm512_ternarylogic_epi32(magnitude, values, _mm512_set1_epi8(-128), 0xF8);  // magnitude | (values & 0x80)
  _mm512_store_si512(out, _mm512_unpacklo_epi8(low, high));
  _mm512_store_si512(out + 64, _mm512_unpackhi_epi8(low, high));
}

// 32 bytes, two blocks of 32 values; `exponents` has their scale bytes in words 0..15 and 16..31.
inline void decode_e2m1_64(const uint8_t* pairs, __m512i exponents, std::byte* out) {
  constexpr __mmask32 kNotZero = 0xFEFEFEFE;  // values 0 and 8 of both tables
  constexpr __mmask32 kNegative = 0xFF00FF00;
  const __m512i words = _mm512_load_si512(kE2m1Words.word);
  __m512i table = _mm512_maskz_adds_epi16(kNotZero, words, _mm512_slli_epi16(_mm512_sub_epi16(exponents, _mm512_set1_epi16(127)), 7));
  table = _mm512_mask_or_epi32(table, 0xFFFF, table, _mm512_maskz_set1_epi16(kNegative, static_cast<short>(0x8000)));
  const __m512i second_block = _mm512_maskz_set1_epi16(0xFFFF0000, 16);
  const __m512i low_nibble = _mm512_set1_epi16(15);
  const __m512i even = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)));
  const __m512i odd = _mm512_srli_epi16(even, 4);
  // (a & 15) | block
  _mm512_store_si512(out, _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(even, low_nibble, second_block, 0xEA), table));
  _mm512_store_si512(out + 64, _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(odd, low_nibble, second_block, 0xEA), table));
}

template <KvFormat kFormat>
inline void decode_row(const uint8_t* row, uint32_t exponents, std::byte* out) {
  if constexpr (kFormat == KvFormat::indexer_fp8) {
    decode_e4m3_64(row, out);
    decode_e4m3_64(row + 64, out + 128);
  } else if constexpr (kFormat == KvFormat::indexer_mxfp4) {
    // Scale byte b in all words of 128-bit lanes 2b and 2b + 1 of the row's eight.
    const __m512i bytes = _mm512_max_epu8(_mm512_set1_epi32(static_cast<int>(exponents)), _mm512_set1_epi8(1));
    const __m512i first = _mm512_shuffle_epi8(
        bytes, _mm512_inserti64x4(_mm512_set1_epi16(static_cast<short>(0x8000)), _mm256_set1_epi16(static_cast<short>(0x8001)), 1));
    const __m512i second = _mm512_shuffle_epi8(
        bytes, _mm512_inserti64x4(_mm512_set1_epi16(static_cast<short>(0x8002)), _mm256_set1_epi16(static_cast<short>(0x8003)), 1));
    decode_e2m1_64(row, first, out);
    decode_e2m1_64(row + 32, second, out + 128);
  } else {
    for (int i = 0; i < 4; ++i) _mm512_store_si512(out + 64 * i, _mm512_loadu_si512(row + 64 * i));
  }
}

// Tiles of 16 heads that are computed for `heads` heads: 1, 2 or a multiple of 4.
inline int64_t head_tiles(int64_t heads) {
  const int64_t tiles = (heads + 15) / 16;
  return tiles <= 2 ? tiles : (tiles + 3) / 4 * 4;
}

// A packed query. Each tile of 16 heads has 64 vectors; vector i holds the i-th pair of values of each head ("VNNI"; 16 vectors are a B
// tile of AMX). The fp32 head weights follow all tiles. Heads that do not exist are zeros with weight 0.
inline constexpr int kPackedTile = kDim * 16 * 2;
inline size_t packed_query_bytes(int64_t heads) { return static_cast<size_t>(head_tiles(heads)) * (kPackedTile + 64); }
inline const float* packed_weights(const std::byte* packed, int64_t tiles) {
  return reinterpret_cast<const float*>(packed + tiles * kPackedTile);
}

template <KvFormat kFormat>
inline void pack_query_as(const Queries& queries, int64_t token, std::byte* packed) {
  constexpr int kRowBytes = static_cast<int>(row_data_bytes(kFormat, kDim));
  const int64_t heads = queries.heads();
  const int64_t tiles = head_tiles(heads);
  const uint8_t* q = static_cast<const uint8_t*>(queries.q.data) + token * heads * kRowBytes;
  alignas(64) std::byte rows[16][kDim * 2];
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t h = t * 16 + i;
      if (h >= heads) {
        std::memset(rows[i], 0, sizeof(rows[i]));
        continue;
      }
      uint32_t exponents = 0;
      if (kFormat == KvFormat::indexer_mxfp4) {
        std::memcpy(&exponents, static_cast<const uint8_t*>(queries.q_scale.data) + (token * heads + h) * 4, 4);
      }
      decode_row<kFormat>(q + h * kRowBytes, exponents, rows[i]);
    }
    for (int k = 0; k < 4; ++k) {
      __m512i v[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) v[i] = _mm512_load_si512(rows[i] + 64 * k);
      transpose_dwords(v);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(packed + t * kPackedTile + (k * 16 + i) * 64, v[i]);
    }
  }
  float* weights = reinterpret_cast<float*>(packed + tiles * kPackedTile);
  std::memset(weights, 0, static_cast<size_t>(tiles) * 64);
  std::memcpy(weights, queries.weights.ptr<float>() + token * heads, static_cast<size_t>(heads) * sizeof(float));
}

inline void pack_query(const Queries& queries, int64_t token, std::byte* packed) {
  switch (queries.cache.format) {
    case KvFormat::indexer_fp8: return pack_query_as<KvFormat::indexer_fp8>(queries, token, packed);
    case KvFormat::indexer_mxfp4: return pack_query_as<KvFormat::indexer_mxfp4>(queries, token, packed);
    default: return pack_query_as<KvFormat::bf16>(queries, token, packed);
  }
}

}  // namespace
}  // namespace strata::cpu::indexer
