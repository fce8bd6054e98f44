// The V3.2 indexer's keys: LayerNorm, rotation, Hadamard, quantise, insert: MLA 11.1-11.4 and 11.9.
//
// Floor: 256 bytes read and 132 written per token. The norm is float64 as in the reference: a mean that is off by its last fp32 bit shows
// in a row of nearly equal lanes. 128 lanes take about 200 cycles of it with AVX-512.
#include <cmath>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/indexer/key_insert.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/indexer/rotate-inl.h"
#include "backends/cpu/kv_insert_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu::indexer {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE VD load_wide(const float* p) { return hn::PromoteTo(F64(), hn::LoadU(F32Half(), p)); }

// x[0, n) in place, rounded to bf16. A true LayerNorm: the mean is taken out, the variance is the biased one, the bias comes last.
HWY_INLINE void layer_norm(float* HWY_RESTRICT x, const float* HWY_RESTRICT weight, const float* HWY_RESTRICT bias, float eps, int64_t n) {
  const F64 dd;
  VD sum = hn::Zero(dd);
  int64_t i = 0;
  for (; i + kLanes64 <= n; i += kLanes64) sum = hn::Add(sum, load_wide(x + i));
  double mean = hn::GetLane(hn::SumOfLanes(dd, sum));
  for (; i < n; ++i) mean += x[i];
  mean /= static_cast<double>(n);
  const VD m = hn::Set(dd, mean);
  VD squares = hn::Zero(dd);
  for (i = 0; i + kLanes64 <= n; i += kLanes64) {
    const VD v = hn::Sub(load_wide(x + i), m);
    squares = hn::MulAdd(v, v, squares);
  }
  double variance = hn::GetLane(hn::SumOfLanes(dd, squares));
  for (; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean);
  variance /= static_cast<double>(n);
  const double deviation = std::sqrt(variance + eps);
  const VD divisor = hn::Set(dd, deviation);
  for (i = 0; i + kLanes64 <= n; i += kLanes64) {
    const VD y = hn::MulAdd(hn::Div(hn::Sub(load_wide(x + i), m), divisor), load_wide(weight + i), load_wide(bias + i));
    hn::StoreU(hn::DemoteTo(F32Half(), y), F32Half(), x + i);
  }
  for (; i < n; ++i) x[i] = static_cast<float>((x[i] - mean) / deviation * weight[i] + bias[i]);
  for (i = 0; i < whole(n); i += kLanes) hn::StoreU(round_bf16(hn::LoadU(F32(), x + i)), F32(), x + i);
  for (; i < n; ++i) x[i] = round_to_bf16(x[i]);
}

void InsertKey(const IndexerKeyInsertParams& p, int64_t t, int64_t slot) {
  const int64_t dim = p.k.shape[1];
  alignas(64) float x[kMaxRowDim];
  widen(p.k.row<Bf16>(t), dim, 1.0f, x);
  layer_norm(x, p.weight.ptr<float>(), p.bias.ptr<float>(), p.eps, dim);
  if (p.cos_sin.present()) {
    const int64_t rotary = p.cos_sin.shape[1];
    rotate_slice(x + (p.rope_slice == RopeSlice::last ? dim - rotary : 0), p.cos_sin.row<float>(p.positions.ptr<int64_t>()[t]), rotary,
                 p.pairing);
  }
  if (p.hadamard) rotate_hadamard(x, dim);  // rounds what it gets
  store_cache_row(p.cache, slot, x);        // rounds to bf16 before anything else
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu::indexer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace indexer {
namespace {

HWY_EXPORT(InsertKey);

void run_key_insert(const IndexerKeyInsertParams& p, const ExecutionContext& context) {
  constexpr int64_t kRows = 64;  // of a task
  const auto insert = HWY_DISPATCH_TABLE(InsertKey)[simd_index(context.device)];
  const int64_t* const slots = p.slot_mapping.ptr<int64_t>();
  parallel_for(context.device, p.slot_mapping.shape[0], kRows, [&](int64_t t) {
    if (slots[t] >= 0) insert(p, t, slots[t]);
  });
}

}  // namespace
}  // namespace indexer

std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert() { return simd_implementation(indexer::run_key_insert); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
