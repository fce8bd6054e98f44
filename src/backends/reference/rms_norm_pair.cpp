#include <cmath>

#include "backends/reference/reference.h"
#include "formats/bf16.h"

namespace strata::reference {
namespace {

void norm_row(const Bf16* x, const float* weight, Bf16* y, int64_t n, float eps) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += double{to_float(x[i])} * to_float(x[i]);
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(static_cast<float>(to_float(x[i]) * scale * weight[i]));
}

void run(const RmsNormPairParams& p) {
  for (int64_t t = 0; t < p.kv.shape[0]; ++t) {
    if (p.q.present()) {
      norm_row(p.q.row<Bf16>(t), p.q_weight.ptr<float>(), p.q_out.row<Bf16>(t), p.q.shape[1], p.eps);
    }
    norm_row(p.kv.row<Bf16>(t), p.kv_weight.ptr<float>(), p.kv_out.row<Bf16>(t), p.kv.shape[1], p.eps);
  }
}

}  // namespace

std::vector<Implementation<RmsNormPairParams>> rms_norm_pair() { return always(run); }

}  // namespace strata::reference
