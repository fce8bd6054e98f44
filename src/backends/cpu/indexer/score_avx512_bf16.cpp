// Index scores with AVX512_BF16: 4 key rows x 64 heads in 16 accumulators, heads as lanes, a pair of key values broadcast.
//
// Floor per 16 rows and 64 heads: 4096 VDPBF16PS (64 flop each), plus 5% for the head sum. Sapphire Rapids issues one in two cycles
// (32 flop a cycle; measured 1.46 G/s a core), AMD's Zen 4 one a cycle.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "backends/cpu/avx512_target.h"
#include "backends/cpu/indexer/score.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"

STRATA_AVX512_BEGIN
#include "backends/cpu/indexer/bf16_rows_avx512.h"
#include "backends/cpu/indexer/head_sum_avx512.h"

namespace strata::cpu::indexer {
namespace {

template <KvFormat kFormat>
void decode_block(const KeyBlock& keys, int rows, std::byte* decoded) {
  for (int r = 0; r < rows; ++r) {
    _mm_prefetch(reinterpret_cast<const char*>(keys.row[r + kLookahead]), _MM_HINT_T0);
    decode_row<kFormat>(keys.row[r], keys.exponents[r], decoded + r * kDim * 2);
  }
}
void decode_block(KvFormat format, const KeyBlock& keys, int rows, std::byte* decoded) {
  switch (format) {
    case KvFormat::indexer_fp8: return decode_block<KvFormat::indexer_fp8>(keys, rows, decoded);
    case KvFormat::indexer_mxfp4: return decode_block<KvFormat::indexer_mxfp4>(keys, rows, decoded);
    default: return decode_block<KvFormat::bf16>(keys, rows, decoded);
  }
}

inline __m512bh bf16_vector(const std::byte* p) { return (__m512bh)_mm512_load_si512(p); }
inline __m512bh broadcast_pair(const std::byte* p) {
  int pair;
  std::memcpy(&pair, p, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

// The head sums of four rows, one quad of 16, over kTiles tiles of 16 heads.
template <int kTiles>
inline __m512 score_quad(const std::byte* keys, const std::byte* query, const __m512* weights) {
  __m512 dot[4][kTiles];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) dot[r][t] = _mm512_setzero_ps();
  }
#pragma GCC unroll 2
  for (int pair = 0; pair < kDim / 2; ++pair) {
    __m512bh q[kTiles];
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) q[t] = bf16_vector(query + t * kPackedTile + pair * 64);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const __m512bh key = broadcast_pair(keys + r * kDim * 2 + pair * 4);
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) dot[r][t] = _mm512_dpbf16_ps(dot[r][t], q[t], key);
    }
  }
  __m512 sum[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    sum[r] = _mm512_mul_ps(weights[0], relu(dot[r][0]));
#pragma GCC unroll 4
    for (int t = 1; t < kTiles; ++t) sum[r] = _mm512_fmadd_ps(weights[t], relu(dot[r][t]), sum[r]);
  }
  return sum_quad(sum[0], sum[1], sum[2], sum[3]);
}

template <int kTiles>
void score_tiles(const std::byte* query, const float* head_weights, const KeyBlock& keys, int groups, bool first_pass, bool last_pass,
                 const std::byte* decoded, float* out) {
  __m512 weights[kTiles];
  for (int t = 0; t < kTiles; ++t) weights[t] = _mm512_loadu_ps(head_weights + 16 * t);
  for (int g = 0; g < groups; ++g) {
    __m512 quads[4];
    for (int i = 0; i < 4; ++i) quads[i] = score_quad<kTiles>(decoded + (g * kGroupRows + 4 * i) * kDim * 2, query, weights);
    finish_group(quads, first_pass, last_pass, keys.scale + g * kGroupRows, out + g * kGroupRows);
  }
}

size_t scratch_bytes(int64_t) { return static_cast<size_t>(kBlockRows) * kDim * 2; }

void score(const Queries& queries, const std::byte* packed, const KeyBlock& keys, int groups, KeyUse use, std::byte* decoded, float* out) {
  if (use != KeyUse::again) decode_block(queries.cache.format, keys, groups * kGroupRows, decoded);
  const int64_t tiles = head_tiles(queries.heads());
  const float* weights = packed_weights(packed, tiles);
  if (tiles == 1) return score_tiles<1>(packed, weights, keys, groups, true, true, decoded, out);
  if (tiles == 2) return score_tiles<2>(packed, weights, keys, groups, true, true, decoded, out);
  for (int64_t t = 0; t < tiles; t += 4) {
    score_tiles<4>(packed + t * kPackedTile, weights + t * 16, keys, groups, t == 0, t + 4 == tiles, decoded, out);
  }
}

void nothing() {}

}  // namespace

Scorer avx512_bf16_scorer() { return {packed_query_bytes, scratch_bytes, nothing, nothing, pack_query, score}; }

}  // namespace strata::cpu::indexer
STRATA_AVX512_END
#endif
