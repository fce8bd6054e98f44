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

float row_scale(const Bf16* x, int64_t n, float eps) { return 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps); }

void scale_values(const Bf16* x, const float* weight, float scale, int64_t n, Bf16* y) {
  const VF s = hn::Set(F32(), scale);
  int64_t i = 0;
  for (; i < whole(n); i += kLanes) {
    store_bf16(hn::Mul(hn::Mul(load_bf16(x + i), s), hn::LoadU(F32(), weight + i)), y + i);
  }
  for (; i < n; ++i) y[i] = to_bf16(to_float(x[i]) * scale * weight[i]);
}

void NormRow(const Bf16* x, const float* weight, Bf16* y, int64_t n, float eps) { scale_values(x, weight, row_scale(x, n, eps), n, y); }

// The query's row t, quantised.
void QuantizeNormRow(const RmsNormPairParams& p, int64_t t) {
  const int64_t n = p.q.shape[1];
  const Bf16* const x = p.q.row<Bf16>(t);
  const float scale = row_scale(x, n, p.eps);
  const bool ue8m0 = p.q_format == ActivationFormat::fp8_ue8m0;
  for (int64_t i = 0; i < n; i += kActivationBlock) {
    Bf16 y[kActivationBlock];
    const int64_t count = n - i < kActivationBlock ? n - i : kActivationBlock;
    scale_values(x + i, p.q_weight.ptr<float>() + i, scale, count, y);
    E4m3* const quantized = p.q_out.row<E4m3>(t) + i;
    float& block_scale = p.q_scale.row<float>(t)[i / kActivationBlock];
    if (count < kActivationBlock) {
      block_scale = quantize_activation(y, count, ue8m0, quantized);
      continue;
    }
    const auto value = [&y](int64_t j) HWY_ATTR { return load_bf16(y + j); };
    if (ue8m0) {
      block_scale = to_float(to_e8m0(store_e4m3_pow2(value, count, kActivationAmaxFloor, quantized)));
    } else {
      block_scale = amax_of(value, count, kActivationAmaxFloor) / kE4m3Max;
      store_e4m3_divided(value, count, block_scale, quantized);
    }
  }
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
HWY_EXPORT(QuantizeNormRow);

constexpr int64_t kRowsPerTask = 16;

void run(const RmsNormPairParams& p, const ExecutionContext& context) {
  const auto norm_row = HWY_DISPATCH_TABLE(NormRow)[simd_index(context.device)];
  const auto quantize_norm_row = HWY_DISPATCH_TABLE(QuantizeNormRow)[simd_index(context.device)];
  parallel_for(context.device, p.kv.shape[0], kRowsPerTask, [&](int64_t t) {
    if (p.q.present() && p.q_format != ActivationFormat::bf16) {
      quantize_norm_row(p, t);
    } else if (p.q.present()) {
      norm_row(p.q.row<Bf16>(t), p.q_weight.ptr<float>(), p.q_out.row<Bf16>(t), p.q.shape[1], p.eps);
    }
    norm_row(p.kv.row<Bf16>(t), p.kv_weight.ptr<float>(), p.kv_out.row<Bf16>(t), p.kv.shape[1], p.eps);
  });
}

}  // namespace

std::vector<Implementation<RmsNormPairParams>> rms_norm_pair() { return simd_implementation(run); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
