// One query token over a run of blocks of its key list: the pipeline shared by the AMX and the AVX512_BF16 path, which
// differ in the Engine (who multiplies tiles). Included inside a target region, like dequant_avx512.h.
//
// A block is at most kBlockRows rows. Per block:
//   1. S^T[row x head] = K Q^T in sub-blocks of 32 rows, while the next sub-block is being decoded;
//   2. softmax over the block, heads as vector lanes, P as bf16 A tiles;
//   3. O[head x dim] = P V in pairs of tiles, each merged into the accumulators while it is still in the L1, and while
//      the first sub-block of the next block is being decoded.
// Decoding (vector ports) hides behind tile products (tile unit) because it is cut into row pairs that are handed out
// between the products of a phase: see Decoder::tick.
//
// Scratch, 64 heads, D = 512: Q 64 KB, K 2 x 32 KB, V 2 x 320 KB, S 80 KB, P 40 KB, accumulators 128 KB: 1.0 MB, half
// of the L2. In phase 3 the P tiles of 32 heads (20 KB) stay in the L1 and V streams from the L2 at 32 bytes a cycle.
#pragma once

namespace strata::cpu {
namespace {

inline constexpr int kSubRows = 32;
inline constexpr int kSubBlocks = kBlockRows / kSubRows;

struct Sizes {
  int head_tiles, k_chunks, v_chunks;
  std::size_t q, k_slot, v, logits, p;  // bytes
  Sizes(const AttendShape& shape, int num_heads)
      : head_tiles(padded_heads(num_heads) / 16),
        k_chunks(shape.head_dim / 32),
        v_chunks(shape.value_dim / 32),
        q(static_cast<std::size_t>(head_tiles) * k_chunks * 1024),
        k_slot(static_cast<std::size_t>(2) * k_chunks * 1024),
        v(static_cast<std::size_t>(v_chunks) * kSubBlocks * 2048),
        logits(static_cast<std::size_t>(head_tiles) * kBlockRows * 64),
        p(static_cast<std::size_t>(head_tiles) * kSubBlocks * 1024) {}
};

struct Scratch {
  std::byte *q, *k[2], *v[2], *p, *c;  // c: the C tiles of one product, 4 KB
  float *logits, *max2, *sum, *old, *fresh;
  std::uint16_t* temp[2];  // decoded rows
  BlockRows* rows[2];

  Scratch(std::byte* base, const Sizes& z) {
    auto take = [&](std::size_t bytes) {
      std::byte* p0 = base;
      base += (bytes + 63) & ~std::size_t{63};
      return p0;
    };
    q = take(z.q);
    for (auto*& x : k) x = take(z.k_slot);
    for (auto*& x : v) x = take(z.v);
    p = take(z.p);
    c = take(4096);
    logits = reinterpret_cast<float*>(take(z.logits));
    for (float** x : {&max2, &sum, &old, &fresh})
      *x = reinterpret_cast<float*>(take(static_cast<std::size_t>(z.head_tiles) * 64));
    for (auto*& x : temp) x = reinterpret_cast<std::uint16_t*>(take(static_cast<std::size_t>(z.k_chunks) * 64));
    for (auto*& x : rows) x = reinterpret_cast<BlockRows*>(take(sizeof(BlockRows)));
    end = base;
  }
  std::byte* end;
};

inline std::size_t pipeline_scratch_bytes(const AttendShape& shape, int num_heads) {
  return static_cast<std::size_t>(Scratch(nullptr, Sizes(shape, num_heads)).end - static_cast<std::byte*>(nullptr));
}

// Decodes sub-blocks of rows, a pair at a time, on demand.
class Decoder {
 public:
  Decoder(const AttendShape& shape, const Sizes& sizes, const Scratch& scratch)
      : shape_(shape), sizes_(sizes), scratch_(scratch) {
    for (int s = 0; s < kMaxKeyScopes; ++s)
      lines_[s] = static_cast<int>((row_data_bytes(shape.source[s].format, shape.head_dim) + 127) / 64);
  }

  // Next work: sub-block `sub` of `block` into K slot `k_slot` and V buffer `v_slot`, spread over `ticks` ticks.
  // `after` is the block whose rows come next, for prefetching.
  void begin(const BlockRows* block, const BlockRows* after, int sub, int k_slot, int v_slot, int ticks) {
    block_ = block;
    after_ = after;
    sub_ = sub;
    k_ = scratch_.k[k_slot];
    v_ = scratch_.v[v_slot];
    pair_ = 0;
    ticks_ = ticks;
    credit_ = 0;
  }
  void idle() { pair_ = kSubRows / 2; }
  void tick() {
    credit_ += kSubRows / 2;
    while (credit_ >= ticks_) {
      credit_ -= ticks_;
      if (pair_ < kSubRows / 2) pair();
    }
  }
  void finish() {
    while (pair_ < kSubRows / 2) pair();
  }
  void prefetch(const BlockRows& block, int i) const {
    if (i >= block.count) return;
    const RowRef& r = block.row[i];
    const int lines = lines_[i >= block.scope0_count];
    for (int l = 0; l < lines; ++l) _mm_prefetch(reinterpret_cast<const char*>(r.data) + l * 64, _MM_HINT_T0);
    if (r.scales) _mm_prefetch(reinterpret_cast<const char*>(r.scales), _MM_HINT_T0);
  }

 private:
  const RowSource& source(int i) const { return shape_.source[i >= block_->scope0_count]; }

  __attribute__((noinline)) void pair() {
    const int p = pair_++, i = sub_ * kSubRows + 2 * p, left = block_->count - i;
    const PairTarget t{k_ + (static_cast<std::size_t>(p / 8) * sizes_.k_chunks) * 1024 + (p % 8) * 128,
                       v_ + static_cast<std::size_t>(sub_) * sizes_.v_chunks * 2048 + p * 64, 2048};
    if (left <= 0) {  // rows that do not exist: their probabilities are zero, so V must be finite
      for (int c = 0; c < sizes_.v_chunks; ++c) {
        _mm512_store_si512(t.v + c * t.v_step, _mm512_setzero_si512());
        _mm512_store_si512(t.v + c * t.v_step + 1024, _mm512_setzero_si512());
      }
      return;
    }
    for (int ahead = i + kSubRows; ahead < i + kSubRows + 2; ++ahead)
      ahead < block_->count ? prefetch(*block_, ahead) : prefetch(*after_, ahead - block_->count);
    const RowRef& a = block_->row[i];
    const RowSource &sa = source(i), &sb = source(i + 1);
    if (left >= 2 && sa.format == KvFormat::fp8_ds_mla_v4 && sb.format == KvFormat::fp8_ds_mla_v4 &&
        write_v4_pair(a, block_->row[i + 1], t))
      return;
    const std::uint16_t* x = row_as_bf16(sa, a, shape_.head_dim, scratch_.temp[0]);
    const std::uint16_t* y = left >= 2 ? row_as_bf16(sb, block_->row[i + 1], shape_.head_dim, scratch_.temp[1]) : nullptr;
    write_bf16_pair(x, y, shape_.head_dim, shape_.value_dim, t);
  }

  const AttendShape& shape_;
  const Sizes& sizes_;
  const Scratch& scratch_;
  const BlockRows *block_ = nullptr, *after_ = nullptr;
  std::byte *k_ = nullptr, *v_ = nullptr;
  int sub_ = 0, pair_ = kSubRows / 2, ticks_ = 1, credit_ = 0;
  int lines_[kMaxKeyScopes];
};

// Q as B tiles [head tile][chunk of 32 dims]: dword (j, h) = dims 2j, 2j+1 of head h. Missing heads are zero.
inline void pack_queries(const AttendQuery& query, HeadRange heads, const Sizes& z, std::byte* out) {
  for (int ht = 0; ht < z.head_tiles; ++ht)
    for (int c = 0; c < z.k_chunks; ++c) {
      __m512i t[16];
      for (int h = 0; h < 16; ++h)
        t[h] = ht * 16 + h < heads.count
                   ? _mm512_loadu_si512(query.q + (heads.begin + ht * 16 + h) * query.q_head_stride + c * 32)
                   : _mm512_setzero_si512();
      store_transposed(t, out + (static_cast<std::size_t>(ht) * z.k_chunks + c) * 1024);
    }
}

// C tiles of one chunk of 32 dims ("lo" and "hi" tile, see dequant_avx512.h) of one head tile into acc [16][32].
template <bool kFirst>
inline void merge_tile_pair(const std::byte* c, float* acc, const float* old, const float* fresh) {
  const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), odd = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 4
  for (int h = 0; h < 16; ++h) {
    const __m512i lo = _mm512_load_si512(c + h * 64), hi = _mm512_load_si512(c + 1024 + h * 64);
    const __m512 x = _mm512_castsi512_ps(_mm512_permutex2var_epi64(lo, even, hi));
    const __m512 y = _mm512_castsi512_ps(_mm512_permutex2var_epi64(lo, odd, hi));
    float* a = acc + h * 32;
    if constexpr (kFirst) {
      _mm512_store_ps(a, x);
      _mm512_store_ps(a + 16, y);
    } else {
      const __m512 fo = _mm512_set1_ps(old[h]), ff = _mm512_set1_ps(fresh[h]);
      _mm512_store_ps(a, merged(_mm512_load_ps(a), fo, x, ff));
      _mm512_store_ps(a + 16, merged(_mm512_load_ps(a + 16), fo, y, ff));
    }
  }
}

inline float* acc_tile(const PartialView& part, const Sizes& z, int head_tile, int chunk) {
  return part.acc + (static_cast<std::size_t>(head_tile) * z.v_chunks + chunk) * 512;
}

template <class Engine, bool kFirst>
void value_products(const Sizes& z, const Scratch& s, const std::byte* v, int sub_blocks, const PartialView& part,
                    Decoder& decoder) {
  const std::size_t p_step = static_cast<std::size_t>(kSubBlocks) * 1024, v_step = static_cast<std::size_t>(z.v_chunks) * 2048;
  for (int ht = 0; ht < z.head_tiles; ht += 2) {
    const std::byte* p = s.p + static_cast<std::size_t>(ht) * p_step;
    const bool two = ht + 1 < z.head_tiles;
    for (int c = 0; c < z.v_chunks; ++c) {
      const std::byte* vc = v + static_cast<std::size_t>(c) * 2048;
      if (two)
        Engine::template values<2>(p, p_step, vc, v_step, sub_blocks, s.c, decoder);
      else
        Engine::template values<1>(p, p_step, vc, v_step, sub_blocks, s.c, decoder);
      merge_tile_pair<kFirst>(s.c, acc_tile(part, z, ht, c), s.old + ht * 16, s.fresh + ht * 16);
      if (two) merge_tile_pair<kFirst>(s.c + 2048, acc_tile(part, z, ht + 1, c), s.old + ht * 16 + 16, s.fresh + ht * 16 + 16);
    }
  }
}

template <class Engine>
void accumulate_blocks(const AttendShape& shape, const AttendQuery& query, HeadRange heads, std::int64_t block_begin,
                       std::int64_t block_end, std::byte* memory, PartialView part) {
  const Sizes z(shape, heads.count);
  const Scratch s(memory, z);
  const std::int64_t entries = total_entries(shape, query), step = attend_block_entries(entries);
  const float scale2 = shape.softmax_scale * kLog2e;
  for (int i = 0; i < z.head_tiles * 16; ++i) part.max2[i] = -INFINITY, part.sum[i] = 0.0f;

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
    for (int i = 0; i < z.head_tiles * 16; ++i) part.sum[i] = kEmptySum;
    return;
  }
  Decoder decoder(shape, z, s);
  for (int i = 0; i < kSubRows; ++i) decoder.prefetch(*s.rows[0], i);
  pack_queries(query, heads, z, s.q);
  collect(*s.rows[1]);
  const int logit_ticks = (z.head_tiles + 1) / 2 * z.k_chunks;
  int k_slot = 0, cur = 0;
  decoder.begin(s.rows[0], s.rows[1], 0, k_slot, cur, 1);
  decoder.finish();

  [[maybe_unused]] Engine engine;  // holds the tile configuration, if there is one
  for (bool first = true; s.rows[cur]->count > 0; first = false) {
    const BlockRows &rows = *s.rows[cur], &after = *s.rows[cur ^ 1];
    const int sub_blocks = (rows.count + kSubRows - 1) / kSubRows;
    for (int i = 0; i < z.head_tiles * 16; ++i) s.max2[i] = -INFINITY;
    for (int sub = 0; sub < sub_blocks; ++sub) {
      if (sub + 1 < sub_blocks)
        decoder.begin(&rows, &after, sub + 1, k_slot ^ 1, cur, logit_ticks);
      else
        decoder.idle();
      const int here = std::min(kSubRows, rows.count - sub * kSubRows);
      for (int ht = 0; ht < z.head_tiles; ht += 2) {
        const bool two = ht + 1 < z.head_tiles;
        float* logits = s.logits + (static_cast<std::size_t>(ht) * kBlockRows + static_cast<std::size_t>(sub) * kSubRows) * 16;
        const std::byte* q = s.q + static_cast<std::size_t>(ht) * z.k_chunks * 1024;
        if (two)
          Engine::template logits<2>(s.k[k_slot], q, z.k_chunks, logits, decoder);
        else
          Engine::template logits<1>(s.k[k_slot], q, z.k_chunks, logits, decoder);
        update_max(logits, here, scale2, s.max2 + ht * 16);
        if (two) update_max(logits + kBlockRows * 16, here, scale2, s.max2 + ht * 16 + 16);
      }
      decoder.finish();
      k_slot ^= 1;
    }
    for (int ht = 0; ht < z.head_tiles; ++ht)
      probabilities(s.logits + static_cast<std::size_t>(ht) * kBlockRows * 16, rows.count, scale2, s.max2 + ht * 16,
                    s.sum + ht * 16, s.p + static_cast<std::size_t>(ht) * kSubBlocks * 1024);
    for (int i = 0; i < z.head_tiles * 16; i += 16) {
      if (first) {
        std::memcpy(part.max2 + i, s.max2 + i, 64);
        std::memcpy(part.sum + i, s.sum + i, 64);
      } else {
        merge_statistics(part.max2 + i, part.sum + i, s.max2 + i, s.sum + i, s.old + i, s.fresh + i);
      }
    }
    if (after.count > 0)
      decoder.begin(&after, &after, 0, k_slot, cur ^ 1, (z.head_tiles + 1) / 2 * z.v_chunks * sub_blocks);
    else
      decoder.idle();
    if (first)
      value_products<Engine, true>(z, s, s.v[cur], sub_blocks, part, decoder);
    else
      value_products<Engine, false>(z, s, s.v[cur], sub_blocks, part, decoder);
    decoder.finish();
    collect(*s.rows[cur]);
    cur ^= 1;
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
