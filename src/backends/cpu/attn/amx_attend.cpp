// The AMX-BF16 path: tile products by TDPBF16PS, everything else as in pipeline_avx512.h.
//
// Floor: one TDPBF16PS (16x16x32) each 16 cycles. A 64-row x 64-head tile of the attention (D = 512) is 256 of them for
// S and 256 for O: 8192 cycles, 128 a row.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/amx_tile.h"
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

// Tiles 0..3 accumulate, 4 and 5 are A, 6 and 7 are B; all are 16 rows of 64 bytes.
class AmxEngine {
 public:
  AmxEngine() { amx_begin(); }
  ~AmxEngine() { amx_end(); }
  AmxEngine(const AmxEngine&) = delete;
  AmxEngine& operator=(const AmxEngine&) = delete;

  // Adds `chunks` x 32 dims to S^T of 32 rows x (16 * kHeadTiles) heads. k: tiles [chunk of 32 dims][row tile].
  // q_step: bytes, out_step: floats from a head tile to the next.
  template <int kHeadTiles, class Meanwhile>
  static void logits(const std::byte* k, const std::byte* q, std::size_t q_step, int chunks, float* out, std::size_t out_step, bool first,
                     Meanwhile& meanwhile) {
    float* right = out + out_step;  // of the second head tile
    if (first) {
      tile_zero<0>();
      tile_zero<2>();
      if constexpr (kHeadTiles == 2) {
        tile_zero<1>();
        tile_zero<3>();
      }
    } else {
      tile_load<0>(out, 64);
      tile_load<2>(out + 256, 64);
      if constexpr (kHeadTiles == 2) {
        tile_load<1>(right, 64);
        tile_load<3>(right + 256, 64);
      }
    }
    for (int c = 0; c < chunks; ++c) {
      tile_load<6>(q + c * 1024, 64);
      tile_load<4>(k + c * 2048, 64);
      tile_dot_bf16<0, 4, 6>();
      meanwhile();
      tile_load<5>(k + c * 2048 + 1024, 64);
      tile_dot_bf16<2, 5, 6>();
      meanwhile();
      if constexpr (kHeadTiles == 2) {
        tile_load<7>(q + q_step + c * 1024, 64);
        tile_dot_bf16<1, 4, 7>();
        meanwhile();
        tile_dot_bf16<3, 5, 7>();
        meanwhile();
      }
    }
    tile_store<0>(out, 64);
    tile_store<2>(out + 256, 64);
    if constexpr (kHeadTiles == 2) {
      tile_store<1>(right, 64);
      tile_store<3>(right + 256, 64);
    }
  }

  // Adds `subs` sub-blocks to (or starts) O of (16 * kHeadTiles) heads x 32 dims: C tiles [lo, hi] of each head tile.
  template <int kHeadTiles, class Meanwhile>
  static void values(const std::byte* p, std::size_t p_step, const std::byte* v, int subs, float* acc, std::size_t acc_step, bool first,
                     Meanwhile& meanwhile) {
    float* below = acc + acc_step;  // of the second head tile
    if (first) {
      tile_zero<0>();
      tile_zero<1>();
      if constexpr (kHeadTiles == 2) {
        tile_zero<2>();
        tile_zero<3>();
      }
    } else {
      tile_load<0>(acc, 64);
      tile_load<1>(acc + 256, 64);
      if constexpr (kHeadTiles == 2) {
        tile_load<2>(below, 64);
        tile_load<3>(below + 256, 64);
      }
    }
    for (int r = 0; r < subs; ++r, p += 1024, v += 2048) {
      tile_load<4>(p, 64);
      tile_load<6>(v, 64);
      tile_dot_bf16<0, 4, 6>();
      meanwhile();
      tile_load<7>(v + 1024, 64);
      tile_dot_bf16<1, 4, 7>();
      meanwhile();
      if constexpr (kHeadTiles == 2) {
        tile_load<5>(p + p_step, 64);
        tile_dot_bf16<2, 5, 6>();
        meanwhile();
        tile_dot_bf16<3, 5, 7>();
        meanwhile();
      }
    }
    tile_store<0>(acc, 64);
    tile_store<1>(acc + 256, 64);
    if constexpr (kHeadTiles == 2) {
      tile_store<2>(below, 64);
      tile_store<3>(below + 256, 64);
    }
  }
};

}  // namespace

const PathFunctions kAmxPath = {pipeline_scratch_bytes, accumulate_blocks<AmxEngine>, combine_partials, finish_partials};
const PrefillFunctions kAmxPrefill = {prefill_scratch_bytes, prefill_task<AmxEngine>};

}  // namespace strata::cpu
STRATA_AVX512_END
