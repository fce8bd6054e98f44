// Random numbers of the case lists: a seed gives the same inputs on every device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace strata::testkit {

// splitmix64: one multiplication chain per draw, so that filling a weight matrix does not dominate a benchmark's start.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In [low, high).
  int64_t in(int64_t low, int64_t high) { return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low)); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool chance(double probability) { return uniform() < probability; }

  // Standard normal with one value in 64 eight times as large, as activations of language models have them.
  float normal();
  void normal(float* out, int64_t n, float scale);

  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[static_cast<size_t>(in(0, static_cast<int64_t>(i)))]);
  }
  // 0..n-1 in random order.
  std::vector<int32_t> permutation(int64_t n);

 private:
  uint64_t state_;
};

}  // namespace strata::testkit
