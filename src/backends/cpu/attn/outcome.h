// The last step of a head: computes lse and the accumulators' factor from maximum and sum.
#pragma once

#include <cmath>
#include <limits>

namespace strata::cpu {

inline constexpr float kEmptySum = -1.0f;  // the sum of a partial result without rows

struct Outcome {
  float lse, max_logit;
  float factor;  // out = accumulator * factor
  bool empty;    // no row, or only rows of weight 0: out = 0 whatever the accumulators hold
};

// max2 is the largest logit times log2(e).
inline Outcome finish_head(float max2, float sum, const float* sink) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  if (sum <= 0.0f) return {inf, -inf, 0.0f, true};
  const float m = max2 * 0.693147180559945309417f;
  float denominator = sum;
  if (sink && *sink != -inf) denominator += std::exp(*sink - m);
  return {m + std::log(sum), m, 1.0f / denominator, false};
}

}  // namespace strata::cpu
