// One softmax over a stream of (logit, value vector) pairs, in float64: V4 specification 14.1.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace strata::reference {

// Heads that share one pass over the rows: their states fit on the stack, and a row is decoded once for all of them.
inline constexpr int64_t kHeadsPerPass = 8;
inline constexpr int64_t kMaxHeadDim = 576;

class OnlineSoftmax {
 public:
  // Starts over with value vectors of `lanes` <= kMaxHeadDim values.
  void reset(int64_t lanes) {
    lanes_ = lanes;
    max_ = -kInfinity;
    sum_ = 0.0;
    std::fill_n(value_.begin(), lanes, 0.0);
  }

  // A logit of -inf has weight 0; it would be -inf - -inf below.
  void add(double logit, const float* value) {
    if (logit == -kInfinity) return;
    if (logit > max_) {
      const double shrink = std::exp(max_ - logit);  // 0 for the first key
      sum_ *= shrink;
      for (int64_t d = 0; d < lanes_; ++d) value_[d] *= shrink;
      max_ = logit;
    }
    const double weight = std::exp(logit - max_);
    sum_ += weight;
    for (int64_t d = 0; d < lanes_; ++d) value_[d] += weight * value[d];
  }

  bool empty() const { return sum_ == 0.0; }
  float max_logit() const { return static_cast<float>(max_); }
  // Without the sink; +inf when empty.
  float lse() const { return empty() ? std::numeric_limits<float>::infinity() : static_cast<float>(max_ + std::log(sum_)); }
  // The divisor of the output: the sink is one more logit with a value of zero. An empty row gives 0 for every sink.
  double denominator(float sink) const { return empty() ? 1.0 : sum_ + std::exp(double{sink} - max_); }
  double value(int64_t lane) const { return value_[lane]; }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  int64_t lanes_ = 0;
  double max_ = -kInfinity;
  double sum_ = 0.0;
  std::array<double, kMaxHeadDim> value_{};
};

}  // namespace strata::reference
