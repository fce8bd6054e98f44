// What happens to an indexer vector before it is quantised: rotation of a slice, and Hadamard transform, bit for bit as in the reference,
// in float64 vectors. Included once per SIMD target.
#if defined(STRATA_INDEXER_ROTATE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_INDEXER_ROTATE_INL_H
#undef STRATA_INDEXER_ROTATE_INL_H
#else
#define STRATA_INDEXER_ROTATE_INL_H
#endif

#include <utility>

#include "backends/cpu/simd_formats-inl.h"
#include "formats/hadamard.h"
#include "formats/rope.h"
#include "contracts/indexer_limits.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu::indexer {
namespace HWY_NAMESPACE {

using namespace strata::cpu::HWY_NAMESPACE;  // NOLINT: the codecs

using F64 = hn::ScalableTag<double>;
using F32Half = hn::Rebind<float, F64>;  // as many lanes as F64
using VD = hn::Vec<F64>;
constexpr int64_t kLanes64 = static_cast<int64_t>(hn::MaxLanes(F64()));

// slice[0, dim) in place, rounded to fp32.
HWY_INLINE void rotate_slice(float* HWY_RESTRICT slice, const float* HWY_RESTRICT cos_sin, int64_t dim, RopePairing pairing) {
  const F64 dd;
  const F32Half dh;
  const int64_t pairs = dim / 2;
  const bool interleaved = pairing == RopePairing::interleaved;
  int64_t i = 0;
  for (; i + kLanes64 <= pairs; i += kLanes64) {
    const VD c = hn::PromoteTo(dd, hn::LoadU(dh, cos_sin + i));
    const VD s = hn::PromoteTo(dd, hn::LoadU(dh, cos_sin + pairs + i));
    hn::Vec<F32Half> x, y;
    if (interleaved) {
      hn::LoadInterleaved2(dh, slice + 2 * i, x, y);
    } else {
      x = hn::LoadU(dh, slice + i);
      y = hn::LoadU(dh, slice + pairs + i);
    }
    const VD first = hn::PromoteTo(dd, x), second = hn::PromoteTo(dd, y);
    x = hn::DemoteTo(dh, hn::NegMulAdd(second, s, hn::Mul(first, c)));
    y = hn::DemoteTo(dh, hn::MulAdd(first, s, hn::Mul(second, c)));
    if (interleaved) {
      hn::StoreInterleaved2(x, y, dh, slice + 2 * i);
    } else {
      hn::StoreU(x, dh, slice + i);
      hn::StoreU(y, dh, slice + pairs + i);
    }
  }
  for (; i < pairs; ++i) {
    float& x = slice[rope_first(i, dim, pairing)];
    float& y = slice[rope_second(i, dim, pairing)];
    const RopePair<double> turned = rotate_pair<double>(x, y, cos_sin, i, dim, false);
    x = static_cast<float>(turned.first);
    y = static_cast<float>(turned.second);
  }
}

// x[0, n) in place: rounded to bf16, transformed, rounded to fp32. n is a power of two. Each stage adds and subtracts neighbours, and
// writes sums to the lower half, differences to the upper half. After log2(n) stages everything is in its original position, and every sum
// has been built in the order of formats/hadamard.h.
HWY_INLINE void rotate_hadamard(float* HWY_RESTRICT x, int64_t n) {
  const F64 dd;
  const F32Half dh;
  alignas(64) double buffer[2][ops::kMaxIndexerDim];
  if (n < 2 * kLanes64) {
    for (int64_t i = 0; i < n; ++i) buffer[0][i] = round_to_bf16(x[i]);
    hadamard(buffer[0], n);
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(buffer[0][i]);
    return;
  }
  int64_t rounded = 0;
  for (; rounded < whole(n); rounded += kLanes) hn::StoreU(round_bf16(hn::LoadU(F32(), x + rounded)), F32(), x + rounded);
  for (; rounded < n; ++rounded) x[rounded] = round_to_bf16(x[rounded]);
  for (int64_t i = 0; i < n; i += kLanes64) hn::StoreU(hn::PromoteTo(dd, hn::LoadU(dh, x + i)), dd, buffer[0] + i);
  // 1 / sqrt(n) as formats/hadamard.h has it.
  double scale = 1;
  int64_t rest = n;
  for (; rest >= 4; rest /= 4) scale *= 0.5;
  if (rest == 2) scale *= 0.70710678118654752440;
  double* HWY_RESTRICT from = buffer[0];
  double* HWY_RESTRICT to = buffer[1];
  for (int64_t stage = 1; stage < n; stage *= 2) {
    for (int64_t i = 0; i < n / 2; i += kLanes64) {
      VD a, b;
      hn::LoadInterleaved2(dd, from + 2 * i, a, b);
      hn::StoreU(hn::Add(a, b), dd, to + i);
      hn::StoreU(hn::Sub(a, b), dd, to + n / 2 + i);
    }
    std::swap(from, to);
  }
  const VD factor = hn::Set(dd, scale);
  for (int64_t i = 0; i < n; i += kLanes64) hn::StoreU(hn::DemoteTo(dh, hn::Mul(hn::LoadU(dd, from + i), factor)), dh, x + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu::indexer
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
