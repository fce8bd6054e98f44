#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/reference/reference.h"
#include "formats/quantize.h"

namespace strata::reference {
namespace {

void norm_row(const Bf16* x, const float* weight, Bf16* y, int64_t n, float eps) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += double{to_float(x[i])} * to_float(x[i]);
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(static_cast<float>(to_float(x[i]) * scale * weight[i]));
}

// Codes of y, made of the bf16 values as a linear layer makes them.
void quantize_row(const RmsNormPairParams& p, int64_t t) {
  const int64_t n = p.q.shape[1];
  std::vector<Bf16> y(static_cast<size_t>(n));
  norm_row(p.q.row<Bf16>(t), p.q_weight.ptr<float>(), y.data(), n, p.eps);
  for (int64_t i = 0; i < n; i += kActivationBlock) {
    p.q_scale.row<float>(t)[i / kActivationBlock] = quantize_activation(
        y.data() + i, std::min<int64_t>(kActivationBlock, n - i), p.q_format == ActivationFormat::fp8_ue8m0, p.q_out.row<E4m3>(t) + i);
  }
}

void run(const RmsNormPairParams& p) {
  for (int64_t t = 0; t < p.kv.shape[0]; ++t) {
    if (p.q.present() && p.q_format != ActivationFormat::bf16) {
      quantize_row(p, t);
    } else if (p.q.present()) {
      norm_row(p.q.row<Bf16>(t), p.q_weight.ptr<float>(), p.q_out.row<Bf16>(t), p.q.shape[1], p.eps);
    }
    norm_row(p.kv.row<Bf16>(t), p.kv_weight.ptr<float>(), p.kv_out.row<Bf16>(t), p.kv.shape[1], p.eps);
  }
}

}  // namespace

std::vector<Implementation<RmsNormPairParams>> rms_norm_pair() { return always(run); }

}  // namespace strata::reference
