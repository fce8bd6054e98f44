// The task of prefill.h in fp32 vectors, any dims. Keys and values of a tile are widened once for kQueries queries; floor as in
// simd_attend.cpp.
#include "backends/cpu/simd_dispatch.h"
#include "outcome.h"
#include "prefill.h"
#include "simd_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attn/simd_prefill.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/rope-inl.h"
#include "simd_tiles-inl.h"

#ifndef STRATA_SIMD_PREFILL_ONCE
#define STRATA_SIMD_PREFILL_ONCE
#include <algorithm>
#include <limits>

namespace strata::cpu {
namespace {

constexpr int kQueries = 32;

constexpr int padded_dim(int n) { return (n + 15) & ~15; }

struct SimdPrefillScratch {
  float *q, *k, *v, *p, *acc, *max2, *sum;
  std::size_t bytes;

  SimdPrefillScratch(std::byte* base, const PrefillShape& shape) {
    std::size_t used = 0;
    const auto take = [&](int rows, int columns) {
      auto* at = reinterpret_cast<float*>(base + used);
      used += (static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * 4 + 63) & ~std::size_t{63};
      return at;
    };
    q = take(kQueries, padded_dim(shape.head()));
    k = take(kTileRows, padded_dim(shape.head()));
    v = take(kTileRows, padded_dim(shape.value));
    p = take(kQueries, kTileRows);
    acc = take(kQueries, padded_dim(shape.value));
    max2 = take(kQueries, 1);
    sum = take(kQueries, 1);
    bytes = used;
  }
};

}  // namespace
}  // namespace strata::cpu
#endif  // STRATA_SIMD_PREFILL_ONCE

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

// out[0, padded) = x[0, n), then zeros.
HWY_INLINE void widen_row(const std::uint16_t* x, int n, int padded, float* out) {
  widen(reinterpret_cast<const Bf16*>(x), n, 1.0f, out);
  std::fill(out + n, out + padded, 0.0f);
}

// Queries [first, first + count) of the task.
void attend_queries(const PrefillShape& shape, const PrefillTask& task, std::int64_t first, int count, const SimdPrefillScratch& s) {
  const int dim = padded_dim(shape.head()), value_dim = padded_dim(shape.value);
  for (int i = 0; i < count; ++i) {
    widen_row(task.q.row(first + i), shape.head(), dim, s.q + i * dim);
    s.max2[i] = -std::numeric_limits<float>::infinity();
    s.sum[i] = kEmptySum;
  }
  std::fill_n(s.acc, count * value_dim, 0.0f);
  const float scale2 = shape.softmax_scale * kLog2E;
  const std::int64_t keys = task.visible(shape, first + count - 1);
  for (std::int64_t j = 0; j < keys; j += kTileRows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kTileRows, keys - j)), padded = (rows + 3) / 4 * 4;
    for (int r = 0; r < rows; ++r) {
      widen_row(task.k_nope.row(j + r), shape.nope, shape.nope, s.k + r * dim);
      widen_row(task.k_pe.row(j + r), shape.rotary, dim - shape.nope, s.k + r * dim + shape.nope);
      widen_row(task.v.row(j + r), shape.value, value_dim, s.v + r * value_dim);
    }
    std::fill(s.k + rows * dim, s.k + padded * dim, 0.0f);
    for (int i = 0; i < count; i += 2) {
      const int pair = std::min(2, count - i);
      const auto products = pair == 2 ? dots<2> : dots<1>;
      for (int r = 0; r < padded; r += 4) products(s.q + i * dim, s.k + r * dim, dim, s.p + i * kTileRows + r);
      // What a query does not see is not added, not even with the weight 0.
      int seen[2];
      float rescale[2];
      for (int k = 0; k < pair; ++k) {
        seen[k] = static_cast<int>(std::clamp<std::int64_t>(task.visible(shape, first + i + k) - j, 0, rows));
        rescale[k] = softmax_tile(s.p + (i + k) * kTileRows, seen[k], scale2, s.max2[i + k], s.sum[i + k]);
      }
      float* const acc = s.acc + i * value_dim;
      if (pair == 2 && seen[0] == seen[1]) {
        add_values<2>(s.p + i * kTileRows, rescale, s.v, seen[0], value_dim, value_dim, acc);
      } else {
        for (int k = 0; k < pair; ++k) {
          if (seen[k] > 0) add_values<1>(s.p + (i + k) * kTileRows, rescale + k, s.v, seen[k], value_dim, value_dim, acc + k * value_dim);
        }
      }
    }
  }
}

void prefill(const PrefillShape& shape, const PrefillTask& task, std::byte* scratch) {
  const SimdPrefillScratch s(scratch, shape);
  for (std::int64_t first = 0; first < task.num_queries; first += kQueries) {
    const int count = static_cast<int>(std::min<std::int64_t>(kQueries, task.num_queries - first));
    attend_queries(shape, task, first, count, s);
    for (int i = 0; i < count; ++i) {
      const Outcome outcome = finish_head(s.max2[i], s.sum[i], nullptr);
      const float factor = outcome.empty ? 0.0f : outcome.factor;
      float* const acc = s.acc + i * padded_dim(shape.value);
      for (int d = 0; d < shape.value; ++d) acc[d] *= factor;
      const std::int64_t at = (first + i) * task.out_stride;
      if (task.out_f32) {
        std::copy_n(acc, shape.value, static_cast<float*>(task.out) + at);
      } else {
        narrow(acc, shape.value, static_cast<std::uint16_t*>(task.out) + at);
      }
      if (task.lse) task.lse[(first + i) * task.lse_stride] = outcome.empty ? -std::numeric_limits<float>::infinity() : outcome.lse;
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

HWY_EXPORT(prefill);

std::size_t simd_prefill_scratch_bytes(const PrefillShape& shape) {
  alignas(64) static constexpr std::byte kOrigin{};
  return SimdPrefillScratch(const_cast<std::byte*>(&kOrigin), shape).bytes;
}

template <CpuIsa kIsa>
void prefill_capped(const PrefillShape& shape, const PrefillTask& task, std::byte* scratch) {
  HWY_DISPATCH_TABLE(prefill)[simd_index(kIsa)](shape, task, scratch);
}

}  // namespace

const PrefillFunctions kAvx512Prefill = {simd_prefill_scratch_bytes, prefill_capped<CpuIsa::avx512>};
const PrefillFunctions kAvx2Prefill = {simd_prefill_scratch_bytes, prefill_capped<CpuIsa::avx2>};
const PrefillFunctions kPortablePrefill = {simd_prefill_scratch_bytes, prefill_capped<CpuIsa::portable>};

}  // namespace strata::cpu
#endif  // HWY_ONCE
