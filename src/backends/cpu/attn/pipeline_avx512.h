// One query token over a run of blocks of its key list: the pipeline shared by the AMX and the AVX512_BF16 path, which
// differ in the Engine (who multiplies tiles). Included inside a target region, like dequant_avx512.h.
//
// A block is at most kBlockRows rows. Per block:
//   1. S^T[row x head] = K Q^T in units of 32 rows x (64 * kUnitGroups) dims, while the next unit is being decoded: one
//      tile product (tile unit), one pair of rows x 64 dims (vector ports), and so on;
//   2. softmax over the block, heads as vector lanes, P as bf16 A tiles;
//   3. O[head x dim] += P V in slices of kSliceSubs x 32 rows and chunks of 32 dims, while V of the next chunk is being
//      made from K.
// Between blocks, accumulators are combined (combine_partials).
//
// Reasons: a row's decoded values are stored once, in memory that stays in L2 (V written along with K would be a second copy there). C
// tiles move as rarely as the L1 allows. Vector work is interleaved with single tile products, so that both can overlap. How far they do
// has not been measured.
#pragma once

namespace strata::cpu {
namespace {

inline constexpr int kSubBlocks = kBlockRows / kSubRows;
inline constexpr int kUnitGroups = 2;  // a unit of phase 1: 32 rows x (kUnitGroups * 64) dims
inline constexpr int kSliceSubs = 7;   // a slice of phase 3, in sub-blocks

struct Sizes {
  int head_tiles, groups, v_groups;  // 16 heads; 64 dims of K and of V
  std::size_t q, k, logits, p;       // bytes
  Sizes(const AttendShape& shape, int num_heads)
      : head_tiles(padded_heads(num_heads) / 16),
        groups(shape.head_dim / 64),
        v_groups(shape.value_dim / 64),
        q(static_cast<std::size_t>(head_tiles) * groups * 2048),
        k(static_cast<std::size_t>(groups) * kSubBlocks * 4096),
        logits(static_cast<std::size_t>(head_tiles) * kBlockRows * 64),
        p(static_cast<std::size_t>(head_tiles) * kSubBlocks * 1024) {}
  int v_chunks() const { return 2 * v_groups; }  // 32 dims
  std::size_t q_tile_step() const { return static_cast<std::size_t>(groups) * 2048; }
  std::size_t k_sub_step() const { return static_cast<std::size_t>(groups) * 4096; }
};

struct Scratch {
  std::byte *q, *k, *p, *v[2];   // k: [sub-block][group]; v: V of a chunk of a slice
  float *logits, *max2, *block;  // block: the partial result of a later block
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
    k = take(z.k);
    p = take(z.p);
    logits = reinterpret_cast<float*>(take(z.logits));
    for (auto*& x : v) x = take(kSliceSubs * 2048);
    max2 = reinterpret_cast<float*>(take(static_cast<std::size_t>(z.head_tiles) * 64));
    block = reinterpret_cast<float*>(take(static_cast<std::size_t>(z.head_tiles) * (128 + 4096 * static_cast<std::size_t>(z.v_groups))));
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

// Addresses of the rows of the next sub-block after `first`, for prefetching: in this block or at the start of the next.
class Ahead {
 public:
  explicit Ahead(const AttendShape& shape) {
    for (int s = 0; s < kMaxKeyScopes; ++s) bytes_[s] = static_cast<int>(row_data_bytes(shape.source[s].format, shape.head_dim));
  }
  // Prefetches the ends of the rows at once: the steps of UnitDecoder only cover their 64 or 128 bytes per group.
  void aim(const BlockRows& block, const BlockRows& after, int first) {
    for (int i = 0; i < kSubRows; ++i) {
      const bool here = first + i < block.count;
      const BlockRows& b = here ? block : after;
      const int at = here ? first + i : first + i - block.count;
      row[i] = kZeroRow;
      if (at < 0 || at >= b.count) continue;
      const RowRef& r = b.row[at];
      row[i] = r.data;
      UnitDecoder<SubFormat::any>::fetch(r.data + bytes_[at >= b.scope0_count] - 1);
      if (r.scales) {
        UnitDecoder<SubFormat::any>::fetch(r.data + 512);
        UnitDecoder<SubFormat::any>::fetch(r.scales);
      }
    }
  }
  const std::byte* row[kSubRows];

 private:
  int bytes_[kMaxKeyScopes];
};

// Q as B tiles [head tile][chunk of 32 dims]: dword (j, h) = dims 2j, 2j+1 of head h. Missing heads are zero.
inline void pack_queries(const AttendQuery& query, HeadRange heads, const Sizes& z, std::byte* out) {
  for (int ht = 0; ht < z.head_tiles; ++ht)
    for (int c = 0; c < 2 * z.groups; ++c) {
      __m512i t[16];
      for (int h = 0; h < 16; ++h)
        t[h] = ht * 16 + h < heads.count ? _mm512_loadu_si512(query.q + (heads.begin + ht * 16 + h) * query.q_head_stride + c * 32)
                                         : _mm512_setzero_si512();
      store_transposed(t, out + static_cast<std::size_t>(ht) * z.q_tile_step() + static_cast<std::size_t>(c) * 1024);
    }
}

// Calls work.step() work.left() times, spread evenly over `products` calls.
template <bool kWork, class Work>
class Spread {
 public:
  Spread(Work work, int products) : work_(work), steps_(work.left()), products_(products) {}
  __attribute__((always_inline)) void operator()() {
    if constexpr (kWork)
      for (credit_ += steps_; credit_ >= products_; credit_ -= products_) work_.step();
  }

 private:
  Work work_;
  int steps_, products_, credit_ = 0;
};

// Phase 3. acc: C tiles [head tile][chunk of 32 dims][lo, hi] (see ValueBuilder).
template <class Engine>
void value_products(const Sizes& z, const Scratch& s, int sub_blocks, float* acc) {
  const std::size_t p_step = static_cast<std::size_t>(kSubBlocks) * 1024;
  const std::size_t acc_step = static_cast<std::size_t>(z.v_chunks()) * 512;
  const int slices = (sub_blocks + kSliceSubs - 1) / kSliceSubs;
  for (int slice = 0; slice < slices; ++slice) {
    const int begin = sub_blocks * slice / slices, count = sub_blocks * (slice + 1) / slices - begin;
    auto builder = [&](int chunk) {
      const std::byte* k = s.k + static_cast<std::size_t>(begin) * z.k_sub_step() + static_cast<std::size_t>(chunk) * 2048;
      return ValueBuilder(k, z.k_sub_step(), chunk < z.v_chunks() ? count : 0, s.v[chunk & 1]);
    };
    for (ValueBuilder first = builder(0); first.left() > 0;) first.step();
    for (int c = 0; c < z.v_chunks(); ++c) {
      Spread<true, ValueBuilder> meanwhile(builder(c + 1), 2 * z.head_tiles * count);
      for (int ht = 0; ht < z.head_tiles; ht += 2) {
        const std::byte* p = s.p + static_cast<std::size_t>(ht) * p_step + static_cast<std::size_t>(begin) * 1024;
        float* out = acc + static_cast<std::size_t>(ht) * acc_step + static_cast<std::size_t>(c) * 512;
        if (ht + 1 < z.head_tiles)
          Engine::template values<2>(p, p_step, s.v[c & 1], count, out, acc_step, slice == 0, meanwhile);
        else
          Engine::template values<1>(p, p_step, s.v[c & 1], count, out, acc_step, slice == 0, meanwhile);
      }
    }
  }
}

// Position of a unit: 32 rows (sub-block `sub`) x `groups` groups of 64 dimensions from `group` on.
struct UnitAt {
  int sub, group, groups;
};
inline UnitAt unit_at(const Sizes& z, int sub, int group) { return {sub, group, std::min(kUnitGroups, z.groups - group)}; }

inline std::byte* k_tiles(const Sizes& z, const Scratch& s, UnitAt at) {
  return s.k + static_cast<std::size_t>(at.sub) * z.k_sub_step() + static_cast<std::size_t>(at.group) * 4096;
}

// The products of one unit, while `decoder` decodes the next one (if kDecode).
template <class Engine, bool kDecode, class Decoder>
__attribute__((noinline)) void logit_products(const Sizes& z, const Scratch& s, UnitAt at, Decoder decoder) {
  Spread<kDecode, Decoder> meanwhile(decoder, 4 * at.groups * z.head_tiles);
  const std::byte* k = k_tiles(z, s, at);
  for (int ht = 0; ht < z.head_tiles; ht += 2) {
    float* logits = s.logits + (static_cast<std::size_t>(ht) * kBlockRows + static_cast<std::size_t>(at.sub) * kSubRows) * 16;
    const std::byte* q = s.q + static_cast<std::size_t>(ht) * z.q_tile_step() + static_cast<std::size_t>(at.group) * 2048;
    if (ht + 1 < z.head_tiles)
      Engine::template logits<2>(k, q, z.q_tile_step(), 2 * at.groups, logits, kBlockRows * 16, at.group == 0, meanwhile);
    else
      Engine::template logits<1>(k, q, z.q_tile_step(), 2 * at.groups, logits, kBlockRows * 16, at.group == 0, meanwhile);
  }
}

// Phase 1 of a block: logits, V tiles, maxima.
template <class Engine>
void block_logits(const AttendShape& shape, const Sizes& z, const Scratch& s, const BlockRows& rows, const BlockRows& after, float scale2,
                  Ahead& ahead) {
  for (int i = 0; i < z.head_tiles * 16; ++i) s.max2[i] = -INFINITY;
  prepare_sub_rows(shape, rows, 0, *s.sub[0]);
  ahead.aim(rows, after, kSubRows);
  const int sub_blocks = (rows.count + kSubRows - 1) / kSubRows;
  UnitAt at = unit_at(z, 0, 0);
  UnitDecoder<SubFormat::any> first(*s.sub[0], ahead.row, 0, at.groups, s.k);
  while (first.left() > 0) first.step();
  while (at.sub < sub_blocks) {
    UnitAt next = unit_at(z, at.sub, at.group + at.groups);
    if (next.group == z.groups) {
      next = unit_at(z, at.sub + 1, 0);
      if (next.sub < sub_blocks) {
        prepare_sub_rows(shape, rows, next.sub * kSubRows, *s.sub[next.sub & 1]);
        ahead.aim(rows, after, (next.sub + 1) * kSubRows);
      }
    }
    const SubRows& r = *s.sub[next.sub & 1];
    std::byte* k = k_tiles(z, s, next);
    if (next.sub == sub_blocks)
      logit_products<Engine, false>(z, s, at, UnitDecoder<SubFormat::any>(r, ahead.row, 0, 0, nullptr));
    else if (r.format == SubFormat::v4)
      logit_products<Engine, true>(z, s, at, UnitDecoder<SubFormat::v4>(r, ahead.row, next.group, next.groups, k));
    else if (r.format == SubFormat::bf16)
      logit_products<Engine, true>(z, s, at, UnitDecoder<SubFormat::bf16>(r, ahead.row, next.group, next.groups, k));
    else
      logit_products<Engine, true>(z, s, at, UnitDecoder<SubFormat::any>(r, ahead.row, next.group, next.groups, k));
    if (next.group == 0) {  // the logits of a sub-block are complete
      const int here = std::min(kSubRows, rows.count - at.sub * kSubRows);
      for (int ht = 0; ht < z.head_tiles; ++ht)
        update_max(s.logits + (static_cast<std::size_t>(ht) * kBlockRows + static_cast<std::size_t>(at.sub) * kSubRows) * 16, here, scale2,
                   s.max2 + ht * 16);
    }
    at = next;
  }
}

// The three phases: the partial result of one block.
template <class Engine>
void block_result(const AttendShape& shape, const Sizes& z, const Scratch& s, const BlockRows& rows, const BlockRows& after, Ahead& ahead,
                  const PartialView& partial) {
  const float scale2 = shape.softmax_scale * kLog2e;
  block_logits<Engine>(shape, z, s, rows, after, scale2, ahead);
  std::memcpy(partial.max2, s.max2, static_cast<std::size_t>(z.head_tiles) * 64);
  for (int ht = 0; ht < z.head_tiles; ++ht)
    probabilities(s.logits + static_cast<std::size_t>(ht) * kBlockRows * 16, rows.count, scale2, s.max2 + ht * 16, partial.sum + ht * 16,
                  s.p + static_cast<std::size_t>(ht) * kSubBlocks * 1024);
  value_products<Engine>(z, s, (rows.count + kSubRows - 1) / kSubRows, partial.acc);
}

// Combines one partial result with another.
inline void combine_partials(int num_heads, int value_dim, PartialView into, PartialView from) {
  if (from.sum[0] == kEmptySum) return;
  const auto padded = static_cast<std::size_t>(padded_heads(num_heads));
  if (into.sum[0] == kEmptySum) {
    std::memcpy(into.max2, from.max2, padded * 4);
    std::memcpy(into.sum, from.sum, padded * 4);
    std::memcpy(into.acc, from.acc, padded * static_cast<std::size_t>(value_dim) * 4);
    return;
  }
  float *acc = into.acc, *x = from.acc;
  for (std::size_t h0 = 0; h0 < padded; h0 += 16) {
    alignas(64) float old[16], fresh[16];
    combine_statistics(into.max2 + h0, into.sum + h0, from.max2 + h0, from.sum + h0, old, fresh);
    for (int tile = 0; tile < value_dim / 16; ++tile)
      for (int h = 0; h < 16; ++h, acc += 16, x += 16)
        _mm512_store_ps(acc, combined(_mm512_load_ps(acc), _mm512_set1_ps(old[h]), _mm512_load_ps(x), _mm512_set1_ps(fresh[h])));
  }
}

template <class Engine>
void accumulate_blocks(const AttendShape& shape, const AttendQuery& query, HeadRange heads, std::int64_t block_begin,
                       std::int64_t block_end, std::byte* memory, PartialView partial) {
  const Sizes z(shape, heads.count);
  const Scratch s(memory, z);
  const std::int64_t step = attend_block_entries(total_entries(shape, query));
  std::int64_t next_block = block_begin;
  auto collect = [&](BlockRows& rows) {  // the next block that has rows
    rows.count = rows.scope0_count = 0;
    while (next_block < block_end && rows.count == 0) {
      collect_block(shape, query, next_block * step, (next_block + 1) * step, rows);
      ++next_block;
    }
  };
  for (int i = 0; i < z.head_tiles * 16; ++i) partial.max2[i] = -INFINITY, partial.sum[i] = kEmptySum;
  collect(*s.rows[0]);
  if (s.rows[0]->count == 0) return;
  s.rows[1]->count = 0;
  Ahead ahead(shape);
  ahead.aim(*s.rows[0], *s.rows[1], 0);
  for (int i = 0; i < std::min(kSubRows, s.rows[0]->count); ++i)
    for (int line = 0; line < z.groups; ++line) UnitDecoder<SubFormat::any>::fetch(ahead.row[i] + line * 64);
  pack_queries(query, heads, z, s.q);
  collect(*s.rows[1]);

  [[maybe_unused]] Engine engine;  // holds the tile configuration, if there is one
  int cur = 0;
  for (bool first = true; s.rows[cur]->count > 0; first = false, cur ^= 1) {
    const PartialView block = first ? partial : partial_view(s.block, heads.count);
    block_result<Engine>(shape, z, s, *s.rows[cur], *s.rows[cur ^ 1], ahead, block);
    if (!first) combine_partials(heads.count, shape.value_dim, partial, block);
    collect(*s.rows[cur]);
  }
}

inline void finish_partials(const AttendShape& shape, const AttendQuery& query, HeadRange heads, PartialView partial) {
  const int chunks = shape.value_dim / 32;
  for (int i = 0; i < heads.count; ++i) {
    const int h = heads.begin + i;
    const Outcome o = finish_head(partial.max2[i], partial.sum[i], query.sink ? &query.sink[h] : nullptr);
    if (query.lse) query.lse[h * query.lse_stride] = o.lse;
    if (query.max_logits) query.max_logits[h * query.lse_stride] = o.max_logit;
    std::uint16_t* out = query.out + h * query.out_head_stride;
    const float* acc = partial.acc + static_cast<std::size_t>(i / 16) * chunks * 512 + (i % 16) * 16;
    const __m512 f = _mm512_set1_ps(o.factor);
    // "lo" and "hi" vectors to the dims' order, after rounding: words 8l + 0..3 come from lo, 8l + 4..7 from hi.
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (int c = 0; c < chunks; ++c, acc += 512) {
      __m512i v = _mm512_setzero_si512();
      if (!o.empty) v = (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_load_ps(acc + 256), f), _mm512_mul_ps(_mm512_load_ps(acc), f));
      _mm512_storeu_si512(out + c * 32, _mm512_permutexvar_epi64(order, v));
    }
  }
}

}  // namespace
}  // namespace strata::cpu
