// The task of prefill.h on tiles: the products of an Engine (AMX or AVX512_BF16), everything else in AVX-512. Included inside a target
// region, like dequant_avx512.h.
//
// A block of kKeyBlock keys is packed once for all queries of the task. Then 32 queries at a time process it: S^T[key x query] = K Q^T with
// queries as vector lanes, softmax, O += P V. A pair of query tiles skips sub-blocks of 32 keys that none of its queries sees.
//
// Floor, 192/128: 10 tile products (16x16x32, 16 cycles each) for 16 queries x 16 keys. The softmax of these is 16 rows of
// what softmax_avx512.h counts, on the vector ports; packing a block is shared by all queries of the task.
#pragma once

namespace strata::cpu {
namespace {

inline constexpr int kKeyBlock = 512;
inline constexpr int kKeySubs = kKeyBlock / kSubRows;

struct PrefillSizes {
  int q_tiles, k_chunks, v_chunks;  // 16 queries; 32 dims
  explicit PrefillSizes(const PrefillShape& shape)
      : q_tiles((shape.max_queries + 15) / 16), k_chunks(shape.head() / 32), v_chunks(shape.value / 32) {}
  std::size_t q_tile_bytes() const { return static_cast<std::size_t>(k_chunks) * 1024; }
  std::size_t k_sub_bytes() const { return static_cast<std::size_t>(k_chunks) * 2048; }
  std::size_t acc_tile() const { return static_cast<std::size_t>(v_chunks) * 512; }  // floats
};
inline constexpr std::size_t kValueChunkBytes = kKeySubs * 2048;

struct PrefillScratch {
  std::byte *q, *k, *v,
      *p;  // q: B tiles [tile][chunk]; k: A tiles [sub-block][chunk][row tile]; v: B tiles [chunk][sub-block][lo, hi]; p: A tiles
  float *logits, *acc, *max2, *sum, *block_acc;  // of the current pair: logits, block_acc; of all queries: acc, max2, sum
  std::uint32_t* nonfinite;                      // by sub-block: rows of V with values that are not finite
  std::size_t bytes;

  PrefillScratch(std::byte* base, const PrefillSizes& z) {
    std::size_t used = 0;
    const auto take = [&](std::size_t n) {
      std::byte* at = base + used;
      used += (n + 63) & ~std::size_t{63};
      return at;
    };
    const auto floats = [&](std::size_t n) { return reinterpret_cast<float*>(take(n * 4)); };
    const auto tiles = static_cast<std::size_t>(z.q_tiles);
    q = take(tiles * z.q_tile_bytes());
    k = take(kKeySubs * z.k_sub_bytes());
    v = take(static_cast<std::size_t>(z.v_chunks) * kValueChunkBytes);
    p = take(2 * kKeySubs * 1024);
    logits = floats(2 * kKeyBlock * 16);
    acc = floats(tiles * z.acc_tile());
    max2 = floats(tiles * 16);
    sum = floats(tiles * 16);
    block_acc = floats(2 * z.acc_tile());
    nonfinite = reinterpret_cast<std::uint32_t*>(take(kKeySubs * sizeof(std::uint32_t)));
    bytes = used;
  }
};

inline std::size_t prefill_scratch_bytes(const PrefillShape& shape) {
  alignas(64) static constexpr std::byte kOrigin{};
  return PrefillScratch(const_cast<std::byte*>(&kOrigin), PrefillSizes(shape)).bytes;
}

// Rows lie a page or more apart, and hardware prefetchers stop at page ends. So lines are prefetched this many rows before their row is
// packed.
inline constexpr int kRowsAhead = 12;

inline void fetch_row(const std::uint16_t* row, int values) {
  for (int i = 0; i < values; i += 32) UnitDecoder<SubFormat::any>::fetch(reinterpret_cast<const std::byte*>(row + i));
}

inline void pack_task_queries(const PrefillTask& task, const PrefillSizes& z, std::byte* out) {
  const auto tiles = static_cast<int>((task.num_queries + 15) / 16);
  for (int tile = 0; tile < tiles; ++tile)
    for (int c = 0; c < z.k_chunks; ++c) {
      __m512i t[16];
      for (int i = 0; i < 16; ++i) {
        if (tile * 16 + i + 16 < task.num_queries) fetch_row(task.q.row(tile * 16 + i + 16) + c * 32, 32);
        t[i] = tile * 16 + i < task.num_queries ? _mm512_loadu_si512(task.q.row(tile * 16 + i) + c * 32) : _mm512_setzero_si512();
      }
      store_transposed(t, out + static_cast<std::size_t>(tile) * z.q_tile_bytes() + static_cast<std::size_t>(c) * 1024);
    }
}

// Keys [first, first + count) as A tiles; rows up to the end of the last sub-block are zero.
inline void pack_keys(const PrefillShape& shape, const PrefillTask& task, const PrefillSizes& z, std::int64_t first, int count,
                      std::byte* out) {
  const int nope_chunks = shape.nope / 32;
  for (int r = 0; r < count; ++r) {
    std::byte* to = out + static_cast<std::size_t>(r / kSubRows) * z.k_sub_bytes() + static_cast<std::size_t>(r % kSubRows) * 64;
    const std::uint16_t* nope = task.k_nope.row(first + r);
    const std::uint16_t* rotary = task.k_pe.row(first + r);
    if (r + kRowsAhead < count) {
      fetch_row(task.k_nope.row(first + r + kRowsAhead), shape.nope);
      fetch_row(task.k_pe.row(first + r + kRowsAhead), shape.rotary);
    }
    for (int c = 0; c < z.k_chunks; ++c)
      _mm512_store_si512(to + c * 2048, _mm512_loadu_si512(c < nope_chunks ? nope + c * 32 : rotary + (c - nope_chunks) * 32));
  }
  for (int r = count; r % kSubRows != 0; ++r)
    for (int c = 0; c < z.k_chunks; ++c)
      _mm512_store_si512(
          out + static_cast<std::size_t>(r / kSubRows) * z.k_sub_bytes() + static_cast<std::size_t>(r % kSubRows) * 64 + c * 2048,
          _mm512_setzero_si512());
}

inline __mmask32 nonfinite_lanes(__m512i v) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  return _mm512_cmpeq_epi16_mask(_mm512_and_si512(v, exponent), exponent);
}

// Values of the same keys as B tiles (see ValueBuilder for their order of dimensions). Values that are not finite become zero, and their
// row is marked. A query that does not see the row has weight 0 for it, and 0 times such a value would not be 0. add_nonfinite() adds them
// for the other queries.
inline void pack_values(const PrefillTask& task, const PrefillSizes& z, std::int64_t first, int count, std::byte* out,
                        std::uint32_t* marks) {
  const int subs = (count + kSubRows - 1) / kSubRows;
  for (int s = 0; s < subs; ++s) {
    marks[s] = 0;
    for (int p = 0; p < kSubRows / 2; ++p) {
      const int r = s * kSubRows + 2 * p;
      const std::uint16_t* a = r < count ? task.v.row(first + r) : nullptr;
      const std::uint16_t* b = r + 1 < count ? task.v.row(first + r + 1) : nullptr;
      std::byte* to = out + static_cast<std::size_t>(s) * 2048 + static_cast<std::size_t>(p) * 64;
      for (int i = r + kRowsAhead; i < std::min(count, r + kRowsAhead + 2); ++i) fetch_row(task.v.row(first + i), z.v_chunks * 32);
      for (int c = 0; c < z.v_chunks; ++c, to += kValueChunkBytes) {
        __m512i x = a != nullptr ? _mm512_loadu_si512(a + c * 32) : _mm512_setzero_si512();
        __m512i y = b != nullptr ? _mm512_loadu_si512(b + c * 32) : _mm512_setzero_si512();
        const __mmask32 bad_x = nonfinite_lanes(x), bad_y = nonfinite_lanes(y);
        if ((bad_x | bad_y) != 0) [[unlikely]] {
          marks[s] |= (bad_x != 0 ? 1u : 0u) << (2 * p) | (bad_y != 0 ? 2u : 0u) << (2 * p);
          x = _mm512_mask_mov_epi16(x, bad_x, _mm512_setzero_si512());
          y = _mm512_mask_mov_epi16(y, bad_y, _mm512_setzero_si512());
        }
        _mm512_store_si512(to, _mm512_unpacklo_epi16(x, y));
        _mm512_store_si512(to + 1024, _mm512_unpackhi_epi16(x, y));
      }
    }
  }
}

// acc of query `lane` of a tile += weight * the values of `row` that pack_values left out.
__attribute__((noinline)) void add_nonfinite(const std::uint16_t* row, int value_dim, float weight, int lane, float* acc) {
  for (int d = 0; d < value_dim; ++d) {
    const float v = to_float(Bf16{row[d]});
    if (std::isfinite(v)) continue;
    const int within = d % 32, at = within / 8 * 4 + within % 4;  // "lo" tiles hold dims 8l + 0..3, "hi" tiles 8l + 4..7
    acc[d / 32 * 512 + (within % 8 < 4 ? 0 : 256) + lane * 16 + at] += weight * v;
  }
}

// The tiles of a pair, or the last one alone, over one block.
struct PrefillPair {
  int first_tile, tiles;
  std::int64_t first_key;
  int rows;  // of the block that the pair's last query sees
};

// Logits of rows that a query does not see: -inf. Queries are the lanes.
inline void mask_unseen(const PrefillShape& shape, const PrefillTask& task, const PrefillPair& pair, float* logits) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int t = 0; t < pair.tiles; ++t, logits += kKeyBlock * 16) {
    const std::int64_t query = (pair.first_tile + t) * 16;
    const std::int64_t seen = task.visible(shape, query) - pair.first_key;  // by lane 0; lane i sees i more
    const std::int64_t first_seen = task.first_visible + query - pair.first_key;
    for (std::int64_t r = std::max<std::int64_t>(seen, 0); r < pair.rows; ++r) {
      // lane i sees row r when first_seen + i > r
      const __mmask16 unseen =
          _mm512_cmple_epi32_mask(lane, _mm512_set1_epi32(static_cast<int>(std::min<std::int64_t>(r - first_seen, 16))));
      _mm512_mask_store_ps(logits + r * 16, unseen, _mm512_set1_ps(-INFINITY));
    }
  }
}

template <class Engine>
void pair_products(const PrefillShape& shape, const PrefillTask& task, const PrefillSizes& z, const PrefillScratch& s,
                   const PrefillPair& pair, bool first_block) {
  constexpr std::size_t kLogitStep = kKeyBlock * 16, kWeightStep = kKeySubs * 1024;
  auto nothing = [] {};
  const std::byte* q = s.q + static_cast<std::size_t>(pair.first_tile) * z.q_tile_bytes();
  const int subs = (pair.rows + kSubRows - 1) / kSubRows;
  for (int sub = 0; sub < subs; ++sub) {
    const std::byte* k = s.k + static_cast<std::size_t>(sub) * z.k_sub_bytes();
    float* logits = s.logits + static_cast<std::size_t>(sub) * kSubRows * 16;
    if (pair.tiles == 2)
      Engine::template logits<2>(k, q, z.q_tile_bytes(), z.k_chunks, logits, kLogitStep, true, nothing);
    else
      Engine::template logits<1>(k, q, z.q_tile_bytes(), z.k_chunks, logits, kLogitStep, true, nothing);
  }
  if (shape.causal) mask_unseen(shape, task, pair, s.logits);

  const float scale2 = shape.softmax_scale * kLog2e;
  alignas(64) float max2[32], sum[32];
  for (int t = 0; t < pair.tiles; ++t) {
    _mm512_store_ps(max2 + t * 16, _mm512_set1_ps(-INFINITY));
    update_max(s.logits + static_cast<std::size_t>(t) * kLogitStep, pair.rows, scale2, max2 + t * 16);
    probabilities(s.logits + static_cast<std::size_t>(t) * kLogitStep, pair.rows, scale2, max2 + t * 16, sum + t * 16,
                  s.p + static_cast<std::size_t>(t) * kWeightStep);
  }

  float* const into = s.acc + static_cast<std::size_t>(pair.first_tile) * z.acc_tile();
  float* const acc = first_block ? into : s.block_acc;
  for (int c = 0; c < z.v_chunks; ++c) {
    const std::byte* v = s.v + static_cast<std::size_t>(c) * kValueChunkBytes;
    if (pair.tiles == 2)
      Engine::template values<2>(s.p, kWeightStep, v, subs, acc + c * 512, z.acc_tile(), true, nothing);
    else
      Engine::template values<1>(s.p, kWeightStep, v, subs, acc + c * 512, z.acc_tile(), true, nothing);
  }
  for (int sub = 0; sub < subs; ++sub)
    for (std::uint32_t marks = s.nonfinite[sub]; marks != 0; marks &= marks - 1) {
      const int r = sub * kSubRows + __builtin_ctz(marks);
      for (int i = 0; i < 16 * pair.tiles; ++i) {
        if (task.visible(shape, pair.first_tile * 16 + i) - pair.first_key <= r) continue;
        const auto* weights = reinterpret_cast<const std::uint16_t*>(s.p + static_cast<std::size_t>(i / 16) * kWeightStep +
                                                                     static_cast<std::size_t>(sub) * 1024);
        add_nonfinite(task.v.row(pair.first_key + r), shape.value, to_float(Bf16{weights[i % 16 * 32 + r % kSubRows]}), i % 16,
                      acc + static_cast<std::size_t>(i / 16) * z.acc_tile());
      }
    }

  float *into_max = s.max2 + pair.first_tile * 16, *into_sum = s.sum + pair.first_tile * 16;
  if (first_block) {
    std::memcpy(into_max, max2, static_cast<std::size_t>(pair.tiles) * 64);
    std::memcpy(into_sum, sum, static_cast<std::size_t>(pair.tiles) * 64);
    return;
  }
  float *x = into, *y = acc;
  for (int t = 0; t < pair.tiles; ++t) {
    alignas(64) float old[16], fresh[16];
    combine_statistics(into_max + t * 16, into_sum + t * 16, max2 + t * 16, sum + t * 16, old, fresh);
    for (int tile = 0; tile < 2 * z.v_chunks; ++tile)
      for (int i = 0; i < 16; ++i, x += 16, y += 16)
        _mm512_store_ps(x, combined(_mm512_load_ps(x), _mm512_set1_ps(old[i]), _mm512_load_ps(y), _mm512_set1_ps(fresh[i])));
  }
}

inline void finish_task(const PrefillTask& task, const PrefillSizes& z, const PrefillScratch& s) {
  for (std::int64_t i = 0; i < task.num_queries; ++i) {
    const Outcome o = finish_head(s.max2[i], s.sum[i], nullptr);
    if (task.lse) task.lse[i * task.lse_stride] = o.empty ? -INFINITY : o.lse;
    const float* acc = s.acc + static_cast<std::size_t>(i / 16) * z.acc_tile() + static_cast<std::size_t>(i % 16) * 16;
    const __m512 f = _mm512_set1_ps(o.factor);
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (int c = 0; c < z.v_chunks; ++c, acc += 512) {
      __m512 lo = _mm512_setzero_ps(), hi = lo;
      if (!o.empty) {
        lo = _mm512_mul_ps(_mm512_load_ps(acc), f);
        hi = _mm512_mul_ps(_mm512_load_ps(acc + 256), f);
      }
      const std::int64_t at = i * task.out_stride + c * 32;
      if (task.out_f32) {
        const __m512i a = _mm512_castps_si512(lo), b = _mm512_castps_si512(hi);
        float* out = static_cast<float*>(task.out) + at;
        _mm512_storeu_si512(out, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b));
        _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b));
      } else {
        _mm512_storeu_si512(static_cast<std::uint16_t*>(task.out) + at,
                            _mm512_permutexvar_epi64(order, (__m512i)_mm512_cvtne2ps_pbh(hi, lo)));
      }
    }
  }
}

template <class Engine>
void prefill_task(const PrefillShape& shape, const PrefillTask& task, std::byte* memory) {
  const PrefillSizes z(shape);
  const PrefillScratch s(memory, z);
  const auto tiles = static_cast<int>((task.num_queries + 15) / 16);
  for (int i = 0; i < tiles * 16; ++i) s.max2[i] = -INFINITY, s.sum[i] = 0.0f;
  const std::int64_t keys = task.visible(shape, task.num_queries - 1);
  if (keys > 0) pack_task_queries(task, z, s.q);
  [[maybe_unused]] Engine engine;  // holds the tile configuration, if there is one
  for (std::int64_t first = 0; first < keys; first += kKeyBlock) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kKeyBlock, keys - first));
    pack_keys(shape, task, z, first, count, s.k);
    pack_values(task, z, first, count, s.v, s.nonfinite);
    for (int tile = 0; tile < tiles; tile += 2) {
      const std::int64_t last_query = std::min<std::int64_t>(task.num_queries, (tile + 2) * 16) - 1;
      const std::int64_t rows = std::min<std::int64_t>(count, task.visible(shape, last_query) - first);
      if (rows > 0) pair_products<Engine>(shape, task, z, s, {tile, std::min(2, tiles - tile), first, static_cast<int>(rows)}, first == 0);
    }
  }
  finish_task(task, z, s);
}

}  // namespace
}  // namespace strata::cpu
