// The AVX512_BF16 path: the tile products of pipeline_avx512.h by VDPBF16PS, on the same operand layouts as AMX. A dword of an A tile (two
// neighbouring k of one row) is broadcast and multiplied with a row of a B tile (the same two k for 16 columns).
//
// Floor: one VDPBF16PS (16 columns x 2 k) a cycle: 64 heads x 512 dims / 32 x 2 products = 2048 cycles a row. Work that matters next to the
// products on AMX is small here.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/avx512_target.h"
#include "outcome.h"
#include "paths.h"
#include "prefill.h"
#include "rows.h"
#include "scalar_rows.h"

STRATA_AVX512_BEGIN
#include "dequant_avx512.h"
#include "softmax_avx512.h"
// (after the two above)
#include "pipeline_avx512.h"
#include "prefill_avx512.h"

namespace strata::cpu {
namespace {

inline __m512 dot(__m512 acc, std::int32_t a, __m512i b) { return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b); }

// c[row][16] of 8 rows of an A tile and kColumns B tiles, over `steps` pairs of tiles, from zero or from what c holds.
// a_step, b_step: bytes between successive tiles; b_column, c_column: between the tiles of neighbouring columns.
template <int kColumns>
inline void products8(const std::byte* a, std::size_t a_step, const std::byte* b, std::size_t b_step, std::size_t b_column, int steps,
                      std::byte* c, std::size_t c_column, bool from_zero) {
  __m512 acc[8][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < kColumns; ++n)
      acc[r][n] = from_zero ? _mm512_setzero_ps() : _mm512_load_ps(c + static_cast<std::size_t>(n) * c_column + r * 64);
  for (int s = 0; s < steps; ++s, a += a_step, b += b_step) {
    const auto* dwords = reinterpret_cast<const std::int32_t*>(a);
    for (int j = 0; j < 16; ++j) {
      __m512i col[kColumns];
#pragma GCC unroll 2
      for (int n = 0; n < kColumns; ++n) col[n] = _mm512_load_si512(b + static_cast<std::size_t>(n) * b_column + j * 64);
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r)
#pragma GCC unroll 2
        for (int n = 0; n < kColumns; ++n) acc[r][n] = dot(acc[r][n], dwords[r * 16 + j], col[n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < kColumns; ++n) _mm512_store_ps(c + static_cast<std::size_t>(n) * c_column + r * 64, acc[r][n]);
}

struct DotEngine {
  template <int kHeadTiles, class Meanwhile>
  static void logits(const std::byte* k, const std::byte* q, std::size_t q_step, int chunks, float* out, std::size_t out_step, bool first,
                     Meanwhile& meanwhile) {
    auto* c = reinterpret_cast<std::byte*>(out);
    for (int half = 0; half < 4; ++half)
      products8<kHeadTiles>(k + half * 512, 2048, q, 1024, q_step, chunks, c + half * 512, out_step * 4, first);
    for (int i = 0; i < 2 * kHeadTiles * chunks; ++i) meanwhile();
  }
  template <int kHeadTiles, class Meanwhile>
  static void values(const std::byte* p, std::size_t p_step, const std::byte* v, int subs, float* acc, std::size_t acc_step, bool first,
                     Meanwhile& meanwhile) {
    for (int ht = 0; ht < kHeadTiles; ++ht, p += p_step, acc += acc_step)
      for (int half = 0; half < 2; ++half)
        products8<2>(p + half * 512, 1024, v, 2048, 1024, subs, reinterpret_cast<std::byte*>(acc + half * 128), 1024, first);
    for (int i = 0; i < 2 * kHeadTiles * subs; ++i) meanwhile();
  }
};

}  // namespace

const PathFunctions kAvx512Bf16Path = {pipeline_scratch_bytes, accumulate_blocks<DotEngine>, combine_partials, finish_partials};
const PrefillFunctions kAvx512Bf16Prefill = {prefill_scratch_bytes, prefill_task<DotEngine>};

}  // namespace strata::cpu
STRATA_AVX512_END
