// Tiles of attention in fp32 vectors: logits, online softmax and weighted sums of a few query rows and up to kTileRows keys. Included
// once per SIMD target.
#if defined(STRATA_SIMD_TILES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_SIMD_TILES_INL_H
#undef STRATA_SIMD_TILES_INL_H
#else
#define STRATA_SIMD_TILES_INL_H
#endif

#include <hwy/highway.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "simd_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Head and value dimensions are multiples of 16; vectors have at most 16 lanes here.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

// logits[h][r] of kHeads heads and 4 rows.
template <int kHeads>
HWY_INLINE void dots(const float* HWY_RESTRICT q, const float* HWY_RESTRICT rows, int dim, float* HWY_RESTRICT out) {
  const D d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  V acc[kHeads][4];
  for (int h = 0; h < kHeads; ++h) {
    for (int r = 0; r < 4; ++r) acc[h][r] = hn::Zero(d);
  }
  for (int i = 0; i < dim; i += lanes) {
    V k[4];
    for (int r = 0; r < 4; ++r) k[r] = hn::LoadU(d, rows + r * dim + i);
    for (int h = 0; h < kHeads; ++h) {
      const V x = hn::LoadU(d, q + h * dim + i);
      for (int r = 0; r < 4; ++r) acc[h][r] = hn::MulAdd(x, k[r], acc[h][r]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int r = 0; r < 4; ++r) out[h * kTileRows + r] = hn::GetLane(hn::SumOfLanes(d, acc[h][r]));
  }
}

// acc[h][0..value_dim) = acc * rescale[h] + sum_r p[h][r] rows[r]
template <int kHeads>
HWY_INLINE void add_values(const float* HWY_RESTRICT p, const float* HWY_RESTRICT rescale, const float* HWY_RESTRICT rows, int count,
                           int dim, int value_dim, float* HWY_RESTRICT acc) {
  const D d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int step = value_dim % (4 * lanes) == 0 ? 4 : value_dim % (2 * lanes) == 0 ? 2 : 1;
  const auto columns = [&](auto vectors, int i) {
    constexpr int kVectors = decltype(vectors)::value;
    V sum[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h) {
      const V factor = hn::Set(d, rescale[h]);
      for (int v = 0; v < kVectors; ++v) sum[h][v] = hn::Mul(hn::LoadU(d, acc + h * value_dim + i + v * lanes), factor);
    }
    for (int r = 0; r < count; ++r) {
      V x[kVectors];
      for (int v = 0; v < kVectors; ++v) x[v] = hn::LoadU(d, rows + r * dim + i + v * lanes);
      for (int h = 0; h < kHeads; ++h) {
        const V weight = hn::Set(d, p[h * kTileRows + r]);
        for (int v = 0; v < kVectors; ++v) sum[h][v] = hn::MulAdd(weight, x[v], sum[h][v]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[h][v], d, acc + h * value_dim + i + v * lanes);
    }
  };
  for (int i = 0; i < value_dim; i += step * lanes) {
    if (step == 4) {
      columns(std::integral_constant<int, 4>{}, i);
    } else if (step == 2) {
      columns(std::integral_constant<int, 2>{}, i);
    } else {
      columns(std::integral_constant<int, 1>{}, i);
    }
  }
}

// Online softmax of one head over the `count` logits of a tile, converted to probabilities in place. Returns the rescale factor of the
// accumulators.
HWY_INLINE float softmax_tile(float* p, int count, float scale2, float& max2, float& sum) {
  float largest = max2;
  for (int r = 0; r < count; ++r) {
    p[r] *= scale2;
    largest = std::fmax(largest, p[r]);
  }
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const float base = largest == kNone ? 0.0f : largest;
  const float rescale = sum <= 0.0f ? 0.0f : std::exp2(max2 - base);
  float total = sum <= 0.0f ? 0.0f : sum * rescale;
  for (int r = 0; r < count; ++r) {
    p[r] = std::exp2(p[r] - base);
    total += p[r];
  }
  max2 = largest;
  sum = total;
  return rescale;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
