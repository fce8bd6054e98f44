// The AVX512_BF16 path: the tile products of pipeline_avx512.h by VDPBF16PS, on the same operand layouts as AMX. A dword
// of an A tile (two neighbouring k of one row) is broadcast and multiplied with a row of a B tile (the same two k for 16
// columns).
//
// Floor: one VDPBF16PS (16 columns x 2 k) a cycle: 64 heads x 512 dims / 32 x 2 products = 2048 cycles a row, so
// everything that matters beside the products on AMX is small here.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "avx512_target.h"
#include "outcome.h"
#include "paths.h"
#include "rows.h"
#include "scalar_rows.h"

STRATA_AVX512_BEGIN
#include "dequant_avx512.h"
#include "softmax_avx512.h"
// (after the two above)
#include "pipeline_avx512.h"

namespace strata::cpu {
namespace {

inline __m512 dot(__m512 acc, std::int32_t a, __m512i b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b);
}

// c[row][16] for 8 rows of an A tile and kColumns B tiles, over `steps` pairs of tiles.
// a_step, b_step: bytes between successive tiles; b_column: between the B tiles of neighbouring columns.
template <int kColumns, class Decoder>
inline void products8(const std::byte* a, std::size_t a_step, const std::byte* b, std::size_t b_step,
                      std::size_t b_column, int steps, std::byte* c, std::size_t c_column, Decoder& decoder) {
  __m512 acc[8][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < kColumns; ++n) acc[r][n] = _mm512_setzero_ps();
  for (int s = 0; s < steps; ++s, a += a_step, b += b_step) {
    const auto* dwords = reinterpret_cast<const std::int32_t*>(a);
    for (int j = 0; j < 16; ++j) {
      __m512i col[kColumns];
#pragma GCC unroll 2
      for (int n = 0; n < kColumns; ++n)
        col[n] = _mm512_load_si512(b + static_cast<std::size_t>(n) * b_column + j * 64);
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r)
#pragma GCC unroll 2
        for (int n = 0; n < kColumns; ++n) acc[r][n] = dot(acc[r][n], dwords[r * 16 + j], col[n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < kColumns; ++n)
      _mm512_store_ps(reinterpret_cast<float*>(c + static_cast<std::size_t>(n) * c_column + r * 64), acc[r][n]);
  (void)decoder;  // nothing to hide the decoding behind: both want the vector ports
}

struct DotEngine {
  template <int kHeadTiles>
  static void logits(const std::byte* k, const std::byte* q, int chunks, float* out, Decoder& decoder) {
    const std::size_t next_tile = static_cast<std::size_t>(chunks) * 1024;
    auto* c = reinterpret_cast<std::byte*>(out);
    for (int rt = 0; rt < 2; ++rt, k += next_tile, c += 1024)
      for (int half = 0; half < 2; ++half)
        products8<kHeadTiles>(k + half * 512, 1024, q, 1024, next_tile, chunks, c + half * 512, kBlockRows * 64, decoder);
  }
  template <int kHeadTiles>
  static void values(const std::byte* p, std::size_t p_step, const std::byte* v, std::size_t v_step, int sub_blocks,
                     std::byte* c, Decoder& decoder) {
    for (int ht = 0; ht < kHeadTiles; ++ht, p += p_step, c += 2048)
      for (int half = 0; half < 2; ++half)
        products8<2>(p + half * 512, 1024, v, v_step, 1024, sub_blocks, c + half * 512, 1024, decoder);
  }
};

}  // namespace

const PathFunctions kAvx512Bf16Path = {pipeline_scratch_bytes, accumulate_blocks<DotEngine>, merge_partials,
                                       finish_partials};

}  // namespace strata::cpu
STRATA_AVX512_END
