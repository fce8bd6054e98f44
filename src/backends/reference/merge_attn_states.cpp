#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backends/reference/reference.h"
#include "formats/bf16.h"

namespace strata::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

float load(const TensorView& v, int64_t offset) {
  return v.dtype == DType::bf16 ? to_float(v.ptr<Bf16>()[offset]) : v.ptr<float>()[offset];
}

void store(const TensorView& v, int64_t offset, float value) {
  if (v.dtype == DType::bf16) {
    v.ptr<Bf16>()[offset] = to_bf16(value);
  } else {
    v.ptr<float>()[offset] = value;
  }
}

// One token and head. An infinite lse marks an empty partial result, whose o is not read.
void merge_head(const MergeAttnStatesParams& p, int64_t t, int64_t h) {
  const int64_t parts = p.o.shape[0];
  const auto lse_of = [&](int64_t k) { return double{p.lse.row<float>(k, t)[h * p.lse.stride[2]]}; };
  double max = -kInfinity;
  bool empty = true;
  for (int64_t k = 0; k < parts; ++k) {
    if (std::isinf(lse_of(k))) continue;
    empty = false;
    max = std::max(max, lse_of(k));
  }
  double sum = 0.0;
  for (int64_t k = 0; k < parts; ++k) {
    if (!std::isinf(lse_of(k))) sum += std::exp(lse_of(k) - max);
  }
  const double sink = p.attn_sink.present() ? p.attn_sink.ptr<float>()[h] : -kInfinity;
  const double denominator = empty ? 1.0 : sum + std::exp(sink - max);
  constexpr int64_t kLanes = 64;  // a slice of the value vector at a time: the sums stay on the stack for every Dv
  std::array<double, kLanes> lanes;
  for (int64_t first = 0; first < p.o.shape[3]; first += kLanes) {
    const int64_t count = std::min(kLanes, p.o.shape[3] - first);
    lanes.fill(0.0);
    for (int64_t k = 0; k < parts; ++k) {
      if (std::isinf(lse_of(k))) continue;
      const double ratio = std::exp(lse_of(k) - max) / denominator;
      const int64_t offset = k * p.o.stride[0] + t * p.o.stride[1] + h * p.o.stride[2] + first;
      for (int64_t d = 0; d < count; ++d) lanes[d] += ratio * load(p.o, offset + d);
    }
    const int64_t offset = t * p.out.stride[0] + h * p.out.stride[1] + first;
    for (int64_t d = 0; d < count; ++d) store(p.out, offset + d, static_cast<float>(lanes[d]));
  }
  // Last, because lse_out may be one of the partial results.
  if (p.lse_out.present()) {
    p.lse_out.row<float>(t)[h * p.lse_out.stride[1]] = empty ? p.empty_lse : static_cast<float>(max + std::log(sum));
  }
}

void run(const MergeAttnStatesParams& p) {
  for (int64_t t = 0; t < p.o.shape[1]; ++t) {
    for (int64_t h = 0; h < p.o.shape[2]; ++h) merge_head(p, t, h);
  }
}

}  // namespace

std::vector<Implementation<MergeAttnStatesParams>> merge_attn_states() { return always(run); }

}  // namespace strata::reference
