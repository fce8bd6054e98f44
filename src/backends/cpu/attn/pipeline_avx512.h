// One query token over a run of blocks of its key list: the pipeline shared by the AMX and the AVX512_BF16 path, which
// differ in the Engine (who multiplies tiles). Included inside a target region, like dequant_avx512.h.
//
// A block is at most kBlockRows rows. Per block:
//   1. S^T[row x head] = K Q^T in units of 32 rows x 64 dims, while the next unit is being decoded: decoding (vector
//      ports) and tile products (tile unit) alternate in steps of a few dozen instructions. The K tiles of a unit (4 KB,
//      twice), its part of Q (8 KB for 64 heads) and its logits (8 KB) stay in the L1; only V goes on to the L2.
//   2. softmax over the block, heads as vector lanes, P as bf16 A tiles;
//   3. O[head x dim] = P V in 32 heads x 32 dims; the C tiles of one product are merged into the accumulators while the
//      next product runs.
//
// What limits it is traffic between L1 and L2 (about 48 bytes a cycle), so kBlockRows is chosen for phase 3: P of 64
// heads and V of 32 dims, 200 bytes a row, have to fit the L1 together.
#pragma once

namespace strata::cpu {
namespace {

inline constexpr int kSubBlocks = kBlockRows / kSubRows;

struct Sizes {
  int head_tiles, units, v_units;  // 16 heads; 64 dims of K and of V
  std::size_t q, v, logits, p;     // bytes
  Sizes(const AttendShape& shape, int num_heads)
      : head_tiles(padded_heads(num_heads) / 16),
        units(shape.head_dim / 64),
        v_units(shape.value_dim / 64),
        q(static_cast<std::size_t>(head_tiles) * units * 2048),
        v(static_cast<std::size_t>(units) * kSubBlocks * 4096),
        logits(static_cast<std::size_t>(head_tiles) * kBlockRows * 64),
        p(static_cast<std::size_t>(head_tiles) * kSubBlocks * 1024) {}
  int v_chunks() const { return 2 * v_units; }  // 32 dims
  std::size_t q_tile_step() const { return static_cast<std::size_t>(units) * 2048; }
  std::size_t v_sub_step() const { return static_cast<std::size_t>(units) * 4096; }
};

struct Scratch {
  std::byte *q, *k[2], *v, *p, *c[2];  // k: K tiles of a unit; c: the C tiles of one product, 4 KB
  float *logits, *max2, *sum, *old, *fresh;
  BlockRows* rows[2];
  SubRows* sub[2];
  std::byte* end;

  Scratch(std::byte* base, const Sizes& z) {
    auto take = [&](std::size_t bytes) {
      std::byte* p0 = base;
      base += (bytes + 63) & ~std::size_t{63};
      return p0;
    };
    q = take(z.q);
    v = take(z.v);
    p = take(z.p);
    logits = reinterpret_cast<float*>(take(z.logits));
    for (auto*& x : k) x = take(4096);
    for (auto*& x : c) x = take(4096);
    for (float** x : {&max2, &sum, &old, &fresh})
      *x = reinterpret_cast<float*>(take(static_cast<std::size_t>(z.head_tiles) * 64));
    for (auto*& x : rows) x = reinterpret_cast<BlockRows*>(take(sizeof(BlockRows)));
    for (auto*& x : sub) x = reinterpret_cast<SubRows*>(take(sizeof(SubRows)));
    end = base;
  }
};

inline std::size_t pipeline_scratch_bytes(const AttendShape& shape, int num_heads) {
  alignas(64) static constexpr std::byte kOrigin{};
  auto* origin = const_cast<std::byte*>(&kOrigin);
  return static_cast<std::size_t>(Scratch(origin, Sizes(shape, num_heads)).end - origin);
}

// Asks for the rows that will be decoded one sub-block later.
class Prefetcher {
 public:
  Prefetcher(const AttendShape& shape) {
    for (int s = 0; s < kMaxKeyScopes; ++s)
      bytes_[s] = static_cast<int>(row_data_bytes(shape.source[s].format, shape.head_dim));
  }
  void aim(const BlockRows* block, const BlockRows* after, int first) {
    block_ = block, after_ = after, first_ = first;
  }
  // The share of `unit` (of `units`) of rows 2p and 2p + 1.
  void pair(int p, int unit, int units) const {
    for (int i = first_ + 2 * p; i < first_ + 2 * p + 2; ++i) row(i, unit, units);
  }
  void row(int i, int unit, int units) const {
    const BlockRows* b = block_;
    if (i >= b->count) i -= b->count, b = after_;
    if (i >= b->count) return;
    const RowRef& r = b->row[i];
    const int bytes = bytes_[i >= b->scope0_count], step = bytes / units;  // 72, 128 or 64 bytes a unit
    const auto* p = reinterpret_cast<const char*>(r.data);
    _mm_prefetch(p + unit * step, _MM_HINT_T1);
    if (step > 64) _mm_prefetch(p + unit * step + step - 1, _MM_HINT_T1);
    if (unit == 0 && r.scales) _mm_prefetch(reinterpret_cast<const char*>(r.scales), _MM_HINT_T1);
  }

 private:
  const BlockRows *block_ = nullptr, *after_ = nullptr;
  int first_ = 0, bytes_[kMaxKeyScopes];
};

// Q as B tiles [head tile][chunk of 32 dims]: dword (j, h) = dims 2j, 2j+1 of head h. Missing heads are zero.
inline void pack_queries(const AttendQuery& query, HeadRange heads, const Sizes& z, std::byte* out) {
  for (int ht = 0; ht < z.head_tiles; ++ht)
    for (int c = 0; c < 2 * z.units; ++c) {
      __m512i t[16];
      for (int h = 0; h < 16; ++h)
        t[h] = ht * 16 + h < heads.count
                   ? _mm512_loadu_si512(query.q + (heads.begin + ht * 16 + h) * query.q_head_stride + c * 32)
                   : _mm512_setzero_si512();
      store_transposed(t, out + static_cast<std::size_t>(ht) * z.q_tile_step() + static_cast<std::size_t>(c) * 1024);
    }
}

// One head of a C tile pair (the "lo" and "hi" tile of a chunk, see dequant_avx512.h) into its 32 accumulators.
template <bool kFirst>
inline void merge_head(const std::byte* c, float* acc, float old, float fresh) {
  const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), odd = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512i lo = _mm512_load_si512(c), hi = _mm512_load_si512(c + 1024);
  const __m512 x = _mm512_castsi512_ps(_mm512_permutex2var_epi64(lo, even, hi));
  const __m512 y = _mm512_castsi512_ps(_mm512_permutex2var_epi64(lo, odd, hi));
  if constexpr (kFirst) {
    _mm512_store_ps(acc, x);
    _mm512_store_ps(acc + 16, y);
  } else {
    const __m512 fo = _mm512_set1_ps(old), ff = _mm512_set1_ps(fresh);
    _mm512_store_ps(acc, merged(_mm512_load_ps(acc), fo, x, ff));
    _mm512_store_ps(acc + 16, merged(_mm512_load_ps(acc + 16), fo, y, ff));
  }
}

// The C tiles of one product (up to 32 heads x 32 dims), to be merged bit by bit.
template <bool kFirst>
struct PendingMerge {
  const std::byte* c = nullptr;
  float* acc = nullptr;
  std::size_t tile_step = 0;  // floats between the accumulators of neighbouring head tiles
  const float *old = nullptr, *fresh = nullptr;
  int heads = 0;

  void part(int begin, int end) const {
    for (int h = begin; h < end; ++h)
      merge_head<kFirst>(c + (h >> 4) * 2048 + (h & 15) * 64, acc + static_cast<std::size_t>(h >> 4) * tile_step + (h & 15) * 32,
                         old[h], fresh[h]);
  }
};

template <class Engine, bool kFirst>
void value_products(const Sizes& z, const Scratch& s, int sub_blocks, const PartialView& part) {
  const std::size_t p_step = static_cast<std::size_t>(kSubBlocks) * 1024;
  PendingMerge<kFirst> pending;
  int buffer = 0;
  for (int c = 0; c < z.v_chunks(); ++c)
    for (int ht = 0; ht < z.head_tiles; ht += 2, buffer ^= 1) {
      const std::byte *p = s.p + static_cast<std::size_t>(ht) * p_step, *v = s.v + static_cast<std::size_t>(c) * 2048;
      const bool two = ht + 1 < z.head_tiles;
      auto meanwhile = [&](int step) {
        pending.part(pending.heads * step / sub_blocks, pending.heads * (step + 1) / sub_blocks);
      };
      if (two)
        Engine::template values<2>(p, p_step, v, z.v_sub_step(), sub_blocks, s.c[buffer], meanwhile);
      else
        Engine::template values<1>(p, p_step, v, z.v_sub_step(), sub_blocks, s.c[buffer], meanwhile);
      const std::size_t tile_step = static_cast<std::size_t>(z.v_chunks()) * 512;
      pending = {s.c[buffer], part.acc + static_cast<std::size_t>(ht) * tile_step + static_cast<std::size_t>(c) * 512,
                 tile_step,   s.old + ht * 16, s.fresh + ht * 16, two ? 32 : 16};
    }
  pending.part(0, pending.heads);
}

// Where a unit is: 32 rows (sub-block `sub`) x 64 dims (`unit`).
struct UnitAt {
  int sub, unit;
};

inline std::byte* v_tiles(const Sizes& z, const Scratch& s, UnitAt at) {
  return s.v + static_cast<std::size_t>(at.sub) * z.v_sub_step() + static_cast<std::size_t>(at.unit) * 4096;
}

// The products of one unit (K tiles k), decoding the unit `next` of `rows` (if kDecode) into the other K tiles.
template <class Engine, SubFormat kFormat, bool kDecode>
void logit_products(const Sizes& z, const Scratch& s, const std::byte* k, UnitAt at, const SubRows& rows,
                    UnitAt next, std::byte* next_k, const Prefetcher& prefetcher) {
  std::byte* next_v = v_tiles(z, s, next);
  const int steps = 2 * ((z.head_tiles + 1) / 2);
  int done = 0, step = 0;
  auto meanwhile = [&] {
    if constexpr (kDecode) {
      for (const int end = kSubRows / 2 * ++step / steps; done < end; ++done) {
        decode_pair<kFormat>(rows, done, next.unit, next_k, next_v);
        prefetcher.pair(done, next.unit, z.units);
      }
    }
  };
  for (int ht = 0; ht < z.head_tiles; ht += 2) {
    float* logits = s.logits + (static_cast<std::size_t>(ht) * kBlockRows + static_cast<std::size_t>(at.sub) * kSubRows) * 16;
    const std::byte* q = s.q + static_cast<std::size_t>(ht) * z.q_tile_step() + static_cast<std::size_t>(at.unit) * 2048;
    if (ht + 1 < z.head_tiles)
      Engine::template logits<2>(k, q, z.q_tile_step(), logits, at.unit == 0, meanwhile);
    else
      Engine::template logits<1>(k, q, z.q_tile_step(), logits, at.unit == 0, meanwhile);
  }
}

template <class Engine, bool kDecode, class... Args>
void logit_products_of(SubFormat format, const Args&... args) {
  switch (format) {
    case SubFormat::v4: return logit_products<Engine, SubFormat::v4, kDecode>(args...);
    case SubFormat::bf16: return logit_products<Engine, SubFormat::bf16, kDecode>(args...);
    case SubFormat::any: return logit_products<Engine, SubFormat::any, kDecode>(args...);
  }
}

// Phase 1 of a block: logits, V tiles, maxima.
template <class Engine>
void block_logits(const AttendShape& shape, const Sizes& z, const Scratch& s, const BlockRows& rows, const BlockRows& after,
                  float scale2, Prefetcher& prefetcher) {
  for (int i = 0; i < z.head_tiles * 16; ++i) s.max2[i] = -INFINITY;
  prepare_sub_rows(shape, rows, 0, *s.sub[0]);
  prefetcher.aim(&rows, &after, kSubRows);
  for (int p = 0; p < kSubRows / 2; ++p) decode_pair<SubFormat::any>(*s.sub[0], p, 0, s.k[0], v_tiles(z, s, {0, 0}));
  const int sub_blocks = (rows.count + kSubRows - 1) / kSubRows;
  int slot = 0;
  for (int sub = 0; sub < sub_blocks; ++sub) {
    for (int unit = 0; unit < z.units; ++unit, slot ^= 1) {
      UnitAt next{sub, unit + 1};
      if (next.unit == z.units) {
        next = {sub + 1, 0};
        if (next.sub < sub_blocks) {
          prepare_sub_rows(shape, rows, next.sub * kSubRows, *s.sub[next.sub & 1]);
          prefetcher.aim(&rows, &after, (next.sub + 1) * kSubRows);
        }
      }
      const SubRows& next_rows = *s.sub[next.sub & 1];
      if (next.sub < sub_blocks)
        logit_products_of<Engine, true>(next_rows.format, z, s, s.k[slot], UnitAt{sub, unit}, next_rows, next, s.k[slot ^ 1], prefetcher);
      else
        logit_products<Engine, SubFormat::any, false>(z, s, s.k[slot], {sub, unit}, next_rows, {0, 0}, s.k[slot ^ 1], prefetcher);
    }
    const int here = std::min(kSubRows, rows.count - sub * kSubRows);
    for (int ht = 0; ht < z.head_tiles; ++ht)
      update_max(s.logits + (static_cast<std::size_t>(ht) * kBlockRows + static_cast<std::size_t>(sub) * kSubRows) * 16, here,
                 scale2, s.max2 + ht * 16);
  }
}

template <class Engine>
void accumulate_blocks(const AttendShape& shape, const AttendQuery& query, HeadRange heads, std::int64_t block_begin,
                       std::int64_t block_end, std::byte* memory, PartialView part) {
  const Sizes z(shape, heads.count);
  const Scratch s(memory, z);
  const std::int64_t step = attend_block_entries(total_entries(shape, query));
  const float scale2 = shape.softmax_scale * kLog2e;
  const int padded = z.head_tiles * 16;

  std::int64_t next_block = block_begin;
  auto collect = [&](BlockRows& rows) {  // the next block that has rows at all
    rows.count = rows.scope0_count = 0;
    while (next_block < block_end && rows.count == 0) {
      collect_block(shape, query, next_block * step, (next_block + 1) * step, rows);
      ++next_block;
    }
  };
  collect(*s.rows[0]);
  if (s.rows[0]->count == 0) {
    for (int i = 0; i < padded; ++i) part.max2[i] = -INFINITY, part.sum[i] = kEmptySum;
    return;
  }
  s.rows[1]->count = 0;
  Prefetcher prefetcher(shape);
  prefetcher.aim(s.rows[0], s.rows[1], 0);
  for (int unit = 0; unit < z.units; ++unit)
    for (int p = 0; p < kSubRows / 2; ++p) prefetcher.pair(p, unit, z.units);
  pack_queries(query, heads, z, s.q);
  collect(*s.rows[1]);

  [[maybe_unused]] Engine engine;  // holds the tile configuration, if there is one
  int cur = 0;
  for (bool first = true; s.rows[cur]->count > 0; first = false, cur ^= 1) {
    const BlockRows& rows = *s.rows[cur];
    block_logits<Engine>(shape, z, s, rows, *s.rows[cur ^ 1], scale2, prefetcher);
    for (int ht = 0; ht < z.head_tiles; ++ht)
      probabilities(s.logits + static_cast<std::size_t>(ht) * kBlockRows * 16, rows.count, scale2, s.max2 + ht * 16,
                    s.sum + ht * 16, s.p + static_cast<std::size_t>(ht) * kSubBlocks * 1024);
    const int sub_blocks = (rows.count + kSubRows - 1) / kSubRows;
    if (first) {
      std::memcpy(part.max2, s.max2, static_cast<std::size_t>(padded) * 4);
      std::memcpy(part.sum, s.sum, static_cast<std::size_t>(padded) * 4);
      value_products<Engine, true>(z, s, sub_blocks, part);
    } else {
      for (int i = 0; i < padded; i += 16)
        merge_statistics(part.max2 + i, part.sum + i, s.max2 + i, s.sum + i, s.old + i, s.fresh + i);
      value_products<Engine, false>(z, s, sub_blocks, part);
    }
    collect(*s.rows[cur]);
  }
}

// Merges one partial result into another (same order of operations as within accumulate_blocks).
inline void merge_partials(int num_heads, int value_dim, PartialView into, PartialView from) {
  if (from.sum[0] == kEmptySum) return;
  if (into.sum[0] == kEmptySum) {
    const std::size_t hp = static_cast<std::size_t>(padded_heads(num_heads));
    std::memcpy(into.max2, from.max2, hp * 4);
    std::memcpy(into.sum, from.sum, hp * 4);
    std::memcpy(into.acc, from.acc, hp * static_cast<std::size_t>(value_dim) * 4);
    return;
  }
  for (int h0 = 0; h0 < padded_heads(num_heads); h0 += 16) {
    alignas(64) float old[16], fresh[16];
    float* acc = into.acc + static_cast<std::size_t>(h0) * value_dim;
    const float* x = from.acc + static_cast<std::size_t>(h0) * value_dim;
    merge_statistics(into.max2 + h0, into.sum + h0, from.max2 + h0, from.sum + h0, old, fresh);
    for (int c = 0; c < value_dim / 32; ++c)
      for (int h = 0; h < 16; ++h)
        for (int i = 0; i < 32; i += 16, acc += 16, x += 16)
          _mm512_store_ps(acc, merged(_mm512_load_ps(acc), _mm512_set1_ps(old[h]), _mm512_load_ps(x), _mm512_set1_ps(fresh[h])));
  }
}

inline void finish_partials(const AttendShape& shape, const AttendQuery& query, HeadRange heads, PartialView part) {
  const int chunks = shape.value_dim / 32;
  for (int i = 0; i < heads.count; ++i) {
    const int h = heads.begin + i;
    const Outcome o = finish_head(part.max2[i], part.sum[i], query.sink ? &query.sink[h] : nullptr);
    if (query.lse) query.lse[h * query.lse_stride] = o.lse;
    if (query.max_logits) query.max_logits[h * query.lse_stride] = o.max_logit;
    if (!query.out) continue;
    std::uint16_t* out = query.out + h * query.out_head_stride;
    const float* acc = part.acc + (static_cast<std::size_t>(i / 16) * chunks * 16 + i % 16) * 32;
    const __m512 f = _mm512_set1_ps(o.factor);
    for (int c = 0; c < chunks; ++c, acc += 512) {
      if (o.empty)
        _mm512_storeu_si512(out + c * 32, _mm512_setzero_si512());
      else
        _mm512_storeu_si512(out + c * 32, (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_load_ps(acc + 16), f),
                                                                       _mm512_mul_ps(_mm512_load_ps(acc), f)));
    }
  }
}

}  // namespace
}  // namespace strata::cpu
