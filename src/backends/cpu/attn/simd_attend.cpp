// The path of machines without bf16 products: the widest fp32 vectors (AVX-512, AVX2, or the compiler's portable code) that the caller's
// cap allows.
//
// A block of rows is decoded to fp32 once for all heads. Floor: 2 * heads * rows * (D + Dv) flops at two fused multiply-adds a cycle: 16
// dimensions of one head and row take a cycle with 8 lanes. Registers hold 2 heads x 4 rows of logits, then 2 heads x 4 vectors of outputs,
// so that every load serves at least two products.
#include "backends/cpu/simd_dispatch.h"
#include "outcome.h"
#include "paths.h"
#include "rows.h"
#include "scalar_rows.h"
#include "simd_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attn/simd_attend.cpp"
#include <hwy/foreach_target.h>

#include "simd_tiles-inl.h"

#ifndef STRATA_SIMD_ATTEND_ONCE
#define STRATA_SIMD_ATTEND_ONCE
#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/bf16.h"

namespace strata::cpu {
namespace {

struct SimdScratch {
  float *q, *rows, *p;
  float* block_partial;  // of a block that is not the first
  BlockRows* block;
  std::size_t bytes;

  SimdScratch(std::byte* base, const AttendShape& shape, int num_heads) {
    std::size_t used = 0;
    const auto take = [&](std::size_t n) {
      std::byte* at = base + used;
      used += (n + 63) & ~std::size_t{63};
      return at;
    };
    const auto heads = static_cast<std::size_t>(padded_heads(num_heads)), dim = static_cast<std::size_t>(shape.head_dim);
    q = reinterpret_cast<float*>(take(heads * dim * 4));
    rows = reinterpret_cast<float*>(take(kTileRows * dim * 4));
    p = reinterpret_cast<float*>(take(heads * kTileRows * 4));
    block_partial = reinterpret_cast<float*>(take(attend_partial_bytes(num_heads, shape.value_dim)));
    block = reinterpret_cast<BlockRows*>(take(sizeof(BlockRows)));
    bytes = used;
  }
};

inline std::size_t simd_scratch_bytes(const AttendShape& shape, int num_heads) {
  alignas(64) static constexpr std::byte kOrigin{};
  return SimdScratch(const_cast<std::byte*>(&kOrigin), shape, num_heads).bytes;
}

// A partial result that no row has contributed to.
inline void start(int num_heads, int value_dim, PartialView partial) {
  std::fill_n(partial.max2, num_heads, -std::numeric_limits<float>::infinity());
  std::fill_n(partial.sum, num_heads, kEmptySum);
  std::fill_n(partial.acc, static_cast<std::size_t>(num_heads) * static_cast<std::size_t>(value_dim), 0.0f);
}

}  // namespace
}  // namespace strata::cpu
#endif  // STRATA_SIMD_ATTEND_ONCE

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

// The rows of s.block under the queries s.q: the partial result of one block.
void block_result(const AttendShape& shape, int heads, const SimdScratch& s, PartialView partial) {
  const int dim = shape.head_dim, value_dim = shape.value_dim;
  const float scale2 = shape.softmax_scale * kLog2E;
  start(heads, value_dim, partial);
  for (int first = 0; first < s.block->count; first += kTileRows) {
    const int count = std::min(kTileRows, s.block->count - first);
    for (int r = 0; r < count; ++r) {
      const RowSource& source = shape.source[first + r < s.block->scope0_count ? 0 : 1];
      const RowRef& row = s.block->row[first + r];
      for (int g = 0; g < dim / 64; ++g) decode_group(source, row.data, row.scales, g, s.rows + r * dim + 64 * g);
    }
    // Rows are taken four at a time; rows after the last one are not this query's.
    const int padded = (count + 3) / 4 * 4;
    std::fill(s.rows + count * dim, s.rows + padded * dim, 0.0f);
    int h = 0;
    for (; h + 2 <= heads; h += 2) {
      for (int r = 0; r < padded; r += 4) dots<2>(s.q + h * dim, s.rows + r * dim, dim, s.p + h * kTileRows + r);
    }
    for (; h < heads; ++h) {
      for (int r = 0; r < padded; r += 4) dots<1>(s.q + h * dim, s.rows + r * dim, dim, s.p + h * kTileRows + r);
    }
    float rescale[2];
    for (h = 0; h < heads; h += 2) {
      const int pair = std::min(2, heads - h);
      for (int i = 0; i < pair; ++i) {
        rescale[i] = softmax_tile(s.p + (h + i) * kTileRows, count, scale2, partial.max2[h + i], partial.sum[h + i]);
      }
      const auto add = pair == 2 ? add_values<2> : add_values<1>;
      add(s.p + h * kTileRows, rescale, s.rows, count, dim, value_dim, partial.acc + static_cast<std::ptrdiff_t>(h) * value_dim);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::cpu {
namespace {

HWY_EXPORT(block_result);

// Both partial results as if the later blocks had been added to the earlier ones. Never inlined: copies of it could round differently
// where the compiler fuses products and sums.
[[gnu::noinline]] void combine(int num_heads, int value_dim, PartialView into, PartialView from) {
  for (int h = 0; h < num_heads; ++h) {
    if (from.sum[h] <= 0.0f) continue;
    float* a = into.acc + static_cast<std::ptrdiff_t>(h) * value_dim;
    const float* b = from.acc + static_cast<std::ptrdiff_t>(h) * value_dim;
    const bool first = into.sum[h] <= 0.0f;
    const float largest = first ? from.max2[h] : std::fmax(into.max2[h], from.max2[h]);
    const float base = std::isinf(largest) && largest < 0 ? 0.0f : largest;
    const float keep = first ? 0.0f : std::exp2(into.max2[h] - base), add = std::exp2(from.max2[h] - base);
    for (int d = 0; d < value_dim; ++d) a[d] = a[d] * keep + b[d] * add;
    into.sum[h] = (first ? 0.0f : into.sum[h] * keep) + from.sum[h] * add;
    into.max2[h] = largest;
  }
}

void finish(const AttendShape& shape, const AttendQuery& query, HeadRange heads, PartialView partial) {
  for (int h = 0; h < heads.count; ++h) {
    const int head = heads.begin + h;
    const Outcome outcome = finish_head(partial.max2[h], partial.sum[h], query.sink ? query.sink + head : nullptr);
    std::uint16_t* out = query.out + head * query.out_head_stride;
    const float* acc = partial.acc + static_cast<std::ptrdiff_t>(h) * shape.value_dim;
    for (int d = 0; d < shape.value_dim; ++d) out[d] = outcome.empty ? std::uint16_t{0} : to_bf16(acc[d] * outcome.factor).bits;
    if (query.lse) query.lse[head * query.lse_stride] = outcome.lse;
    if (query.max_logits) query.max_logits[head * query.lse_stride] = outcome.max_logit;
  }
}

// Every block starts afresh and is combined: the operations are the same whether one thread has all blocks or each thread has one.
template <CpuIsa kIsa>
void accumulate(const AttendShape& shape, const AttendQuery& query, HeadRange heads, std::int64_t block_begin, std::int64_t block_end,
                std::byte* memory, PartialView partial) {
  const SimdScratch s(memory, shape, heads.count);
  const PartialView later = partial_view(s.block_partial, heads.count);
  for (int h = 0; h < heads.count; ++h) {
    load_dims(reinterpret_cast<const std::byte*>(query.q + (heads.begin + h) * query.q_head_stride), shape.head_dim,
              s.q + h * shape.head_dim);
  }
  if (block_begin == block_end) start(heads.count, shape.value_dim, partial);
  const std::int64_t total = total_entries(shape, query), step = attend_block_entries(total);
  for (std::int64_t b = block_begin; b < block_end; ++b) {
    collect_block(shape, query, b * step, std::min(total, (b + 1) * step), *s.block);
    const bool first = b == block_begin;
    HWY_DISPATCH_TABLE(block_result)[simd_index(kIsa)](shape, heads.count, s, first ? partial : later);
    if (!first) combine(heads.count, shape.value_dim, partial, later);
  }
}

}  // namespace

const PathFunctions kAvx512Path = {simd_scratch_bytes, accumulate<CpuIsa::avx512>, combine, finish};
const PathFunctions kAvx2Path = {simd_scratch_bytes, accumulate<CpuIsa::avx2>, combine, finish};
const PathFunctions kPortablePath = {simd_scratch_bytes, accumulate<CpuIsa::portable>, combine, finish};

}  // namespace strata::cpu
#endif  // HWY_ONCE
