// RMSNorm of the query and key-value latents on the CPU. Floor: 4 bytes per value (read and written once); V4-Flash, T = 512: 3 MB,
// which stay in the caches.
#include <cmath>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/norm.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/rope-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

void NormRow(const Bf16* x, const float* weight, Bf16* y, int64_t n, float eps) {
  const float scale = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  const VF s = hn::Set(F32(), scale);
  int64_t i = 0;
  for (; i < whole(n); i += kLanes) {
    store_bf16(hn::Mul(hn::Mul(load_bf16(x + i), s), hn::LoadU(F32(), weight + i)), y + i);
  }
  for (; i < n; ++i) y[i] = to_bf16(to_float(x[i]) * scale * weight[i]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace {

HWY_EXPORT(NormRow);

constexpr int64_t kRowsPerTask = 16;

void run(const RmsNormPairParams& p, const ExecutionContext& context) {
  const auto norm_row = HWY_DISPATCH_TABLE(NormRow)[simd_index(context.device)];
  parallel_for(context.device, p.kv.shape[0], kRowsPerTask, [&](int64_t t) {
    if (p.q.present()) norm_row(p.q.row<Bf16>(t), p.q_weight.ptr<float>(), p.q_out.row<Bf16>(t), p.q.shape[1], p.eps);
    norm_row(p.kv.row<Bf16>(t), p.kv_weight.ptr<float>(), p.kv_out.row<Bf16>(t), p.kv.shape[1], p.eps);
  });
}

}  // namespace

std::vector<Implementation<RmsNormPairParams>> rms_norm_pair() { return simd_implementation(run); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
