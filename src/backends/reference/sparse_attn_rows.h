// Attention of one query token over a stream of rows: what decode and prefill share.
#pragma once

#include "backends/reference/online_softmax.h"
#include "formats/bf16.h"
#include "strata/tensor.h"

namespace strata::reference {

inline double dot(const Bf16* q, const float* k, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += double{to_float(q[i])} * k[i];
  return sum;
}

// One query token: q [H, D] and out [H, Dv] with their head strides, and where head h's results go.
struct QueryToken {
  const Bf16* q;
  int64_t q_stride;
  int64_t num_heads;
  int64_t head_dim;
  const float* sink;  // [H] or null
  double scale;
  Bf16* out;
  int64_t out_stride;
  int64_t value_dim;
  float* lse;  // null: not wanted
  int64_t lse_stride;
  float* max_logits;
  int64_t max_logits_stride;
};

// for_each_row(f) calls f(const float* row) for every attended row, duplicates as often as they occur.
template <class ForEachRow>
void attend(const QueryToken& t, ForEachRow&& for_each_row) {
  for (int64_t first = 0; first < t.num_heads; first += kHeadsPerPass) {
    const int64_t heads = std::min(kHeadsPerPass, t.num_heads - first);
    std::array<OnlineSoftmax, kHeadsPerPass> states;
    for (int64_t i = 0; i < heads; ++i) states[i].reset(t.value_dim);
    for_each_row([&](const float* row) {
      for (int64_t i = 0; i < heads; ++i) states[i].add(t.scale * dot(t.q + (first + i) * t.q_stride, row, t.head_dim), row);
    });
    for (int64_t i = 0; i < heads; ++i) {
      const int64_t h = first + i;
      const float sink = t.sink != nullptr ? t.sink[h] : -std::numeric_limits<float>::infinity();
      const double denominator = states[i].denominator(sink);
      for (int64_t d = 0; d < t.value_dim; ++d) t.out[h * t.out_stride + d] = to_bf16(static_cast<float>(states[i].value(d) / denominator));
      if (t.lse != nullptr) t.lse[h * t.lse_stride] = states[i].lse();
      if (t.max_logits != nullptr) t.max_logits[h * t.max_logits_stride] = states[i].max_logit();
    }
  }
}

}  // namespace strata::reference
