// Index scores with AMX-BF16: A = 16 key rows, B = 16 heads, C fp32 [rows x heads].
//
// Floor per 16 rows and 64 heads: 16 TDPBF16PS of 16 cycles = 256 cycles (1024 flop a cycle). Beside them run, on the vector ports,
// the head sum of the unit before (173 operations) and, when keys are new, the decoding of the unit after (288 operations for e4m3), all
// cut into quarters between the products, so that the out-of-order window always has both kinds of work.
// Bytes: 16 rows of fp8 are 2112 bytes, which 64 heads of one token turn over in those 256 cycles: 8 bytes a cycle and core. Decode of
// one token per request is bound by whichever of memory and tile unit is slower, prefill by the tile unit alone.
// What keeps it from the floor: a tile load for every product and four tile stores for every 16 products. Loads and products measured
// alone reach 83% of the product rate, with the stores 68%, with the head sum 55-60%, with decoding 45-50%.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "backends/cpu/attn/avx512_target.h"
#include "backends/cpu/indexer/amx_tile.h"
#include "backends/cpu/indexer/score.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"

STRATA_AVX512_BEGIN
#include "backends/cpu/indexer/bf16_rows_avx512.h"
#include "backends/cpu/indexer/head_sum_avx512.h"

namespace strata::cpu::indexer {
namespace {

inline constexpr int kGroupBytes = kGroupRows * kDim * 2;
inline constexpr int kTileFloats = 256;
inline constexpr size_t kKeyBytes = static_cast<size_t>(kBlockRows) * kDim * 2;

// A unit is four C tiles: 4 / kTiles groups of 16 rows times kTiles tiles of 16 heads.
template <int kTiles>
struct Unit {
  static constexpr int kGroups = 4 / kTiles;

  // Products with values [32k, 32k + 32): tiles 0..3 accumulate, 4..7 hold operands.
  static void products(const std::byte* keys, const std::byte* query, int k) {
    const std::byte* a = keys + 64 * k;
    const std::byte* b = query + 1024 * k;
    if constexpr (kTiles == 4) {
      tile_load<4>(a, 256);
      tile_load<5>(b, 64);
      tile_dot_bf16<0, 4, 5>();
      tile_load<6>(b + kPackedTile, 64);
      tile_dot_bf16<1, 4, 6>();
      tile_load<7>(b + 2 * kPackedTile, 64);
      tile_dot_bf16<2, 4, 7>();
      tile_load<5>(b + 3 * kPackedTile, 64);
      tile_dot_bf16<3, 4, 5>();
    } else if constexpr (kTiles == 2) {
      tile_load<4>(a, 256);
      tile_load<6>(b, 64);
      tile_dot_bf16<0, 4, 6>();
      tile_load<7>(b + kPackedTile, 64);
      tile_dot_bf16<1, 4, 7>();
      tile_load<5>(a + kGroupBytes, 256);
      tile_dot_bf16<2, 5, 6>();
      tile_dot_bf16<3, 5, 7>();
    } else {
      tile_load<4>(b, 64);
      tile_load<5>(a, 256);
      tile_dot_bf16<0, 5, 4>();
      tile_load<6>(a + kGroupBytes, 256);
      tile_dot_bf16<1, 6, 4>();
      tile_load<7>(a + 2 * kGroupBytes, 256);
      tile_dot_bf16<2, 7, 4>();
      tile_load<5>(a + 3 * kGroupBytes, 256);
      tile_dot_bf16<3, 5, 4>();
    }
  }
  static void zero() {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
  }
  static void store(float* c) {
    tile_store<0>(c, 64);
    tile_store<1>(c + kTileFloats, 64);
    tile_store<2>(c + 2 * kTileFloats, 64);
    tile_store<3>(c + 3 * kTileFloats, 64);
  }
  // Four rows of group `group`: rows 4 * quad...
  static __m512 quad(const float* c, int group, int quad, const __m512* weights) {
    __m512 sum[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const float* row = c + group * kTiles * kTileFloats + (quad * 4 + r) * 16;
      sum[r] = _mm512_mul_ps(weights[0], relu(_mm512_load_ps(row)));
#pragma GCC unroll 3
      for (int t = 1; t < kTiles; ++t) sum[r] = _mm512_fmadd_ps(weights[t], relu(_mm512_load_ps(row + t * kTileFloats)), sum[r]);
    }
    return sum_quad(sum[0], sum[1], sum[2], sum[3]);
  }
};

// Decodes quarter `part` of a unit of kRows rows to `out` and asks for the rows that come kLookahead later.
template <int kRows, KvFormat kFormat>
inline void decode_quarter(const KeyBlock& keys, int unit, int part, std::byte* out) {
  constexpr int kBytes = static_cast<int>(row_data_bytes(kFormat, kDim));
#pragma GCC unroll 4
  for (int i = 0; i < kRows / 4; ++i) {
    const int in_unit = part * (kRows / 4) + i;
    const int r = unit * kRows + in_unit;
    const char* ahead = reinterpret_cast<const char*>(keys.row[r + kLookahead]);
    for (int line = 0; line < kBytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
    decode_row<kFormat>(keys.row[r], keys.exponents[r], out + in_unit * kDim * 2);
  }
}

// Passes of up to 64 heads add up; the keys are decoded in the first. Keys that only this pass will see are decoded into two units in
// turn instead of the whole block: with one token per block the L1 then holds everything but the rows themselves.
struct Pass {
  bool first, last;
  bool keep_keys;
};

// One pass. `kFormat` matters only when decoding.
template <int kTiles, KvFormat kFormat, bool kDecode>
void score_pass(const std::byte* query, const float* head_weights, const KeyBlock& keys, int groups, Pass pass, std::byte* decoded,
                float* c, float* out) {
  using U = Unit<kTiles>;
  constexpr int kRows = U::kGroups * kGroupRows;
  const int units = (groups + U::kGroups - 1) / U::kGroups;
  const auto unit_keys = [&](int u) { return decoded + (pass.keep_keys ? u : u % 2) * U::kGroups * kGroupBytes; };
  __m512 weights[kTiles];
  for (int t = 0; t < kTiles; ++t) weights[t] = _mm512_loadu_ps(head_weights + 16 * t);

  if constexpr (kDecode) {
    for (int part = 0; part < 4; ++part) decode_quarter<kRows, kFormat>(keys, 0, part, unit_keys(0));
  }
  for (int u = 0; u <= units; ++u) {
    const std::byte* a = unit_keys(u);
    const float* before = c + (u + 1) % 2 * 4 * kTileFloats;
    __m512 quads[4];
    if (u < units) U::zero();
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      if (u < units) U::products(a, query, k);
      if (u > 0) {
#pragma GCC unroll 4
        for (int i = 0; i < U::kGroups; ++i) {
          const int step = k * U::kGroups + i;  // of the 4 quads of each group
          quads[step % 4] = U::quad(before, step / 4, step % 4, weights);
          if (step % 4 == 3) {
            const int row = (u - 1) * kRows + step / 4 * kGroupRows;
            finish_group(quads, pass.first, pass.last, keys.scale + row, out + row);
          }
        }
      }
      if constexpr (kDecode) {
        if (u + 1 < units) decode_quarter<kRows, kFormat>(keys, u + 1, k, unit_keys(u + 1));
      }
    }
    if (u < units) U::store(c + u % 2 * 4 * kTileFloats);
  }
}

template <int kTiles>
void score_tiles(KvFormat format, bool decode, const std::byte* query, const float* head_weights, const KeyBlock& keys, int groups,
                 Pass pass, std::byte* decoded, float* c, float* out) {
  const auto run = [&](auto function) { function(query, head_weights, keys, groups, pass, decoded, c, out); };
  if (!decode) return run(score_pass<kTiles, KvFormat::bf16, false>);
  switch (format) {
    case KvFormat::indexer_fp8:
      return run(score_pass<kTiles, KvFormat::indexer_fp8, true>);
    case KvFormat::indexer_mxfp4:
      return run(score_pass<kTiles, KvFormat::indexer_mxfp4, true>);
    default:
      return run(score_pass<kTiles, KvFormat::bf16, true>);
  }
}

// Two sets of four C tiles, decoded keys.
size_t scratch_bytes(int64_t) { return 8 * kTileFloats * sizeof(float) + kKeyBytes; }

void score(const Queries& queries, const std::byte* packed, const KeyBlock& keys, int groups, KeyUse use, std::byte* scratch, float* out) {
  const int64_t tiles = head_tiles(queries.heads());
  const float* weights = packed_weights(packed, tiles);
  float* c = reinterpret_cast<float*>(scratch);
  std::byte* decoded = scratch + 8 * kTileFloats * sizeof(float);
  const KvFormat format = queries.cache.format;
  const bool decode = use != KeyUse::again;
  const Pass only = {true, true, use != KeyUse::once};
  if (tiles == 1) return score_tiles<1>(format, decode, packed, weights, keys, groups, only, decoded, c, out);
  if (tiles == 2) return score_tiles<2>(format, decode, packed, weights, keys, groups, only, decoded, c, out);
  for (int64_t t = 0; t < tiles; t += 4) {
    const Pass pass = {t == 0, t + 4 == tiles, use != KeyUse::once || tiles > 4};
    score_tiles<4>(format, decode && t == 0, packed + t * kPackedTile, weights + t * 16, keys, groups, pass, decoded, c, out);
  }
}

}  // namespace

Scorer amx_scorer() { return {packed_query_bytes, scratch_bytes, amx_begin, amx_end, pack_query, score}; }

}  // namespace strata::cpu::indexer
STRATA_AVX512_END
#endif
