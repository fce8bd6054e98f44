// Index scores with AMX-BF16: A = 16 key rows, B = 16 heads, C fp32 [rows x heads].
//
// Floor per group of 16 rows and 64 heads: 16 TDPBF16PS of 16 cycles = 256 cycles (1024 flop a cycle). The vector ports run concurrently
// the head sum of the group before (173 operations). For new keys they also decode the group after (288 operations for e4m3).
// Bytes: 16 rows of fp8 are 2112 bytes, which 64 heads of one token turn over in those 256 cycles: 8 bytes a cycle and core. Decode of
// one token per request is bound by whichever of memory and tile unit is slower, prefill by the tile unit alone.
// Measured on Sapphire Rapids: 370 cycles a group with decoded keys, 500 with decoding. Each product needs a tile load and every fourth
// a tile store; those alone, without vector work, take 335 cycles.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <utility>

#include "backends/cpu/amx_tile.h"
#include "backends/cpu/avx512_target.h"
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
inline constexpr int kMaxTiles = 4;  // tiles of heads of a pass
inline constexpr size_t kKeyBytes = static_cast<size_t>(kBlockRows) * kDim * 2;

// Passes of up to 64 heads add up; the keys are decoded in the first pass. Keys that only this pass uses are decoded alternately into two
// groups instead of the whole block. With one token per block the L1 then holds everything except the rows themselves.
struct Pass {
  bool first, last;
  bool keep_keys;
};

// One pass over a block. A group of 16 rows takes 4 * kTiles products, "slots". The processor renames few tile registers: whatever follows
// a handful of tile instructions waits for them. So the vector work does not follow the products of a group. It is spread over the slots:
// after each product, 4 / kTiles rows of the head sum of the group before and of the decoding of the group after.
template <int kTiles, KvFormat kFormat, bool kDecode>
class ScorePass {
 public:
  ScorePass(const std::byte* query, const float* head_weights, const KeyBlock& keys, int groups, Pass pass, std::byte* decoded, float* c,
            float* out)
      : query_(query), keys_(keys), groups_(groups), pass_(pass), decoded_(decoded), c_(c), out_(out) {
    for (int t = 0; t < kTiles; ++t) weights_[t] = _mm512_loadu_ps(head_weights + 16 * t);
  }

  void run() {
    if constexpr (kDecode) {
      for (int r = 0; r < kGroupRows; ++r) decode(0, r);
    }
    if constexpr (kTiles == 1) {
      load_resident(query_, 64 * kGroupRows, 64);
    } else if constexpr (!kDecode) {
      load_resident(decoded_, 64, kDim * 2);
    }
    group<true, false>(0);
    for (int g = 1; g < groups_; ++g) group<true, true>(g);
    group<false, true>(groups_);
  }

 private:
  static constexpr int kSlotRows = 4 / kTiles;

  std::byte* group_keys(int g) const { return decoded_ + (pass_.keep_keys || !kDecode ? g : g % 2) * kGroupBytes; }
  float* group_c(int g) const { return c_ + g % 2 * kMaxTiles * kTileFloats; }

  // The four tiles that stay: values [32k, 32k + 32) in tile 4 + k. One tile of heads stays for all rows; of more, the rows stay.
  static void load_resident(const std::byte* base, int64_t step, int64_t stride) {
    tile_load<4>(base, stride);
    tile_load<5>(base + step, stride);
    tile_load<6>(base + 2 * step, stride);
    tile_load<7>(base + 3 * step, stride);
  }

  // The products of group g, interleaved with the head sum of group g - 1.
  template <bool kMultiply, bool kSum>
  __attribute__((always_inline)) void group(int g) {
    // Without decoding these loads are spread over the last slots of the group before; decoding is not done by then.
    if constexpr (kMultiply && kDecode && kTiles > 1) load_resident(group_keys(g), 64, kDim * 2);
    slots<kMultiply, kSum>(g, std::make_integer_sequence<int, 4 * kTiles>());
    if constexpr (kMultiply) tile_store<(kTiles - 1) % 2>(group_c(g) + (kTiles - 1) * kTileFloats, 64);
  }
  template <bool kMultiply, bool kSum, int... kSlot>
  __attribute__((always_inline)) void slots(int g, std::integer_sequence<int, kSlot...>) {
    (slot<kMultiply, kSum, kSlot / 4, kSlot % 4>(g), ...);
  }

  // Head tile t, values [32k, 32k + 32). Tiles 0 and 1 accumulate alternately, so that one is stored while the other accumulates. Products
  // into the same accumulator do not wait for each other.
  template <bool kMultiply, bool kSum, int t, int k>
  __attribute__((always_inline)) void slot(int g) {
    constexpr int kC = t % 2, kStreamed = 2 + k % 2, kFirst = (t * 4 + k) * kSlotRows;
    if constexpr (kMultiply) {
      if constexpr (k == 0) tile_zero<kC>();
      if constexpr (k == 2 && t > 0) tile_store<1 - kC>(group_c(g) + (t - 1) * kTileFloats, 64);
      if constexpr (kTiles == 1) {
        tile_load<kStreamed>(group_keys(g) + 64 * k, kDim * 2);
        tile_dot_bf16<kC, kStreamed, 4 + k>();
      } else {
        tile_load<kStreamed>(query_ + t * kPackedTile + k * 64 * kGroupRows, 64);
        tile_dot_bf16<kC, 4 + k, kStreamed>();
        if constexpr (!kDecode && t == kTiles - 1) {
          if (g + 1 < groups_) tile_load<4 + k>(group_keys(g + 1) + 64 * k, kDim * 2);
        }
      }
    }
    if constexpr (kSum) {
#pragma GCC unroll 4
      for (int i = 0; i < kSlotRows; ++i) sum_heads(g - 1, kFirst + i);
    }
    if constexpr (kMultiply && kDecode) {
      if (g + 1 < groups_) {
#pragma GCC unroll 4
        for (int i = 0; i < kSlotRows; ++i) decode(g + 1, kFirst + i);
      }
    }
  }

  __attribute__((always_inline)) void sum_heads(int g, int row) {
    const float* c = group_c(g) + row * 16;
    __m512 sum = _mm512_mul_ps(weights_[0], relu(_mm512_load_ps(c)));
#pragma GCC unroll 3
    for (int t = 1; t < kTiles; ++t) sum = _mm512_fmadd_ps(weights_[t], relu(_mm512_load_ps(c + t * kTileFloats)), sum);
    rows_[row % 4] = sum;
    if (row % 4 == 3) quads_[row / 4] = sum_quad(rows_[0], rows_[1], rows_[2], rows_[3]);
    if (row == 15) finish_group(quads_, pass_.first, pass_.last, keys_.scale + g * kGroupRows, out_ + g * kGroupRows);
  }

  // Decodes a row and asks for the one that comes kLookahead later.
  __attribute__((always_inline)) void decode(int g, int row) {
    constexpr int kBytes = static_cast<int>(row_data_bytes(kFormat, kDim));
    const int r = g * kGroupRows + row;
    const char* ahead = reinterpret_cast<const char*>(keys_.row[r + kLookahead]);
    for (int line = 0; line < kBytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
    decode_row<kFormat>(keys_.row[r], keys_.exponents[r], group_keys(g) + row * kDim * 2);
  }

  const std::byte* const query_;
  const KeyBlock& keys_;
  const int groups_;
  const Pass pass_;
  std::byte* const decoded_;
  float* const c_;
  float* const out_;
  __m512 weights_[kTiles];
  __m512 rows_[4];   // head sums in the lanes, of up to four rows
  __m512 quads_[4];  // see sum_quad
};

template <int kTiles, KvFormat kFormat, bool kDecode>
void score_pass(const std::byte* query, const float* head_weights, const KeyBlock& keys, int groups, Pass pass, std::byte* decoded,
                float* c, float* out) {
  ScorePass<kTiles, kFormat, kDecode>(query, head_weights, keys, groups, pass, decoded, c, out).run();
}

template <int kTiles>
void score_tiles(KvFormat format, bool decode, const std::byte* query, const float* head_weights, const KeyBlock& keys, int groups,
                 Pass pass, std::byte* decoded, float* c, float* out) {
  const auto run = [&](auto function) { function(query, head_weights, keys, groups, pass, decoded, c, out); };
  if (!decode) return run(score_pass<kTiles, KvFormat::bf16, false>);
  switch (format) {
    case KvFormat::indexer_fp8: return run(score_pass<kTiles, KvFormat::indexer_fp8, true>);
    case KvFormat::indexer_mxfp4: return run(score_pass<kTiles, KvFormat::indexer_mxfp4, true>);
    default: return run(score_pass<kTiles, KvFormat::bf16, true>);
  }
}

// Two sets of four C tiles, decoded keys.
size_t scratch_bytes(int64_t) { return 2 * kMaxTiles * kTileFloats * sizeof(float) + kKeyBytes; }

void score(const Queries& queries, const std::byte* packed, const KeyBlock& keys, int groups, KeyUse use, std::byte* scratch, float* out) {
  const int64_t tiles = head_tiles(queries.heads());
  const float* weights = packed_weights(packed, tiles);
  float* c = reinterpret_cast<float*>(scratch);
  std::byte* decoded = scratch + 2 * kMaxTiles * kTileFloats * sizeof(float);
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
