// IndexerQuery: rotate, optionally Hadamard, quantise, fold the scales into the head weights: V4 10.1, MLA 11.2-11.5.
//
// Floor: 256 bytes read and 64 to 256 written per head of 128 values. Bit for bit the reference, which rotates and adds in float64
// before it rounds to bf16: rotated lanes and butterflies are therefore float64 vectors here too. A product of a bf16 and an fp32 is
// exact in float64, so that fused multiply-adds change nothing. About 100 cycles a head with AVX-512 beside the quantiser, 250 with
// Hadamard.
#include <utility>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/indexer/query.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/kv_insert_rows-inl.h"
#include "formats/hadamard.h"
#include "formats/rope.h"
#include "ops/indexer/indexer_checks.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu::indexer {
namespace HWY_NAMESPACE {
namespace {

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

// x[0, n) in place: rounded to bf16, rotated, rounded to fp32. n is a power of two. Each stage adds and subtracts neighbours and puts
// sums into the lower half, differences into the upper one; after log2(n) stages everything is where it was, and every sum has been
// built in the order of formats/hadamard.h.
void rotate_hadamard(float* HWY_RESTRICT x, int64_t n) {
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

// Head `head` of all tokens' heads; returns the scale to fold into its weight.
HWY_INLINE float store_codes(const IndexerQueryParams& p, int64_t head, const float* HWY_RESTRICT x, int64_t dim) {
  if (p.q_out.dtype == DType::u8) {
    uint8_t* packed = p.q_out.ptr<uint8_t>() + head * dim / 2;
    uint8_t* scales = p.q_scale_out.ptr<uint8_t>() + head * dim / kMxfp4Block;
    for (int64_t b = 0; b < dim / kMxfp4Block; ++b) scales[b] = store_mxfp4(x + b * kMxfp4Block, packed + b * kMxfp4Block / 2);
    return 1.0f;
  }
  if (p.q_out.dtype == DType::bf16) {
    narrow(x, dim, p.q_out.ptr<Bf16>() + head * dim);
    return 1.0f;
  }
  E4m3* codes = p.q_out.ptr<E4m3>() + head * dim;
  if (dim == whole(dim)) {
    return to_float(to_e8m0(store_e4m3_pow2(x, dim, p.amax_floor, reinterpret_cast<uint8_t*>(codes))));
  }
  Bf16 rounded[ops::kMaxIndexerDim];
  narrow(x, dim, rounded);
  return quantize_indexer_fp8(rounded, dim, p.amax_floor, codes);
}

// Heads [begin, end) of all tokens' heads.
void QueryHeads(const IndexerQueryParams& p, int64_t begin, int64_t end) {
  const int64_t heads = p.q.shape[1], dim = p.q.shape[2];
  const int64_t rotary = p.cos_sin.present() ? p.cos_sin.shape[1] : 0;
  const int64_t first_rotary = p.lanes == RopeLanes::last ? dim - rotary : 0;
  alignas(64) float x[ops::kMaxIndexerDim];
  int64_t t = begin / heads, h = begin % heads;
  for (int64_t head = begin; head < end; ++head) {
    widen(p.q.row<Bf16>(t, h), dim, 1.0f, x);
    if (rotary > 0) rotate_slice(x + first_rotary, p.cos_sin.row<float>(p.positions.ptr<int64_t>()[t]), rotary, p.pairing);
    if (p.hadamard) rotate_hadamard(x, dim);
    const float q_scale = store_codes(p, head, x, dim);
    const float weight = p.weights.dtype == DType::bf16 ? to_float(p.weights.row<Bf16>(t)[h]) : p.weights.row<float>(t)[h];
    p.weights_out.ptr<float>()[head] = ((weight * q_scale) * p.softmax_scale) * p.head_scale;
    if (++h == heads) {
      h = 0;
      ++t;
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu::indexer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace indexer {
namespace {

HWY_EXPORT(QueryHeads);

void run(const IndexerQueryParams& p, const ExecutionContext& context) {
  constexpr int64_t kHeads = 64;  // of a task
  const auto query_heads = HWY_DISPATCH_TABLE(QueryHeads)[simd_index(context.device)];
  const int64_t total = p.q.shape[0] * p.q.shape[1];
  parallel_for(context.device, (total + kHeads - 1) / kHeads, 1,
               [&](int64_t task) { query_heads(p, task * kHeads, std::min(total, (task + 1) * kHeads)); });
}

}  // namespace
}  // namespace indexer

std::vector<Implementation<IndexerQueryParams>> indexer_query() { return simd_implementation(indexer::run); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
