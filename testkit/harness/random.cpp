#include "testkit/harness/random.h"

#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

namespace strata::testkit {
namespace {

constexpr size_t kTableBits = 16;
using NormalTable = std::array<float, size_t{1} << kTableBits>;

// Drawing from a table costs 16 bits and one load a value.
const NormalTable& normal_table() {
  static const NormalTable table = [] {
    NormalTable values{};
    Rng rng(0);
    for (size_t i = 0; i < values.size(); i += 2) {  // Box-Muller
      const double radius = std::sqrt(-2.0 * std::log(1.0 - rng.uniform()));
      const double angle = 2.0 * std::numbers::pi * rng.uniform();
      values[i] = static_cast<float>(radius * std::cos(angle));
      values[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
    for (size_t i = 0; i < values.size(); i += 64) values[i] *= 8.0f;
    return values;
  }();
  return table;
}

}  // namespace

float Rng::normal() { return normal_table()[next() >> (64 - kTableBits)]; }

void Rng::normal(float* out, int64_t n, float scale) {
  const NormalTable& table = normal_table();
  for (int64_t i = 0; i < n;) {
    uint64_t bits = next();
    for (int draw = 0; draw < 4 && i < n; ++draw, ++i, bits >>= kTableBits) out[i] = scale * table[bits & (table.size() - 1)];
  }
}

std::vector<int32_t> Rng::permutation(int64_t n) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  shuffle(values);
  return values;
}

}  // namespace strata::testkit
