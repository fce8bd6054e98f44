// Nearest-even by search: the oracle of the encoders, with no arithmetic in common with them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace strata::test {

// value[c] is the magnitude of bits c, ascending from 0. The bits nearest to `magnitude`, ties to even bits; beyond the last value
// the last bits. Differences of these doubles are exact.
inline uint32_t nearest_even_code(double magnitude, const std::vector<double>& value) {
  size_t low = 0, high = value.size() - 1;  // value[low] <= magnitude <= value[high] where possible
  if (magnitude >= value[high]) return static_cast<uint32_t>(high);
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    (value[middle] <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value[low], above = value[high] - magnitude;
  if (below != above) return static_cast<uint32_t>(below < above ? low : high);
  return static_cast<uint32_t>(low % 2 == 0 ? low : high);
}

inline float bits_to_float(uint32_t bits) {
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

// Values that decide about rounding: every value, every midpoint of neighbours, and the fp32 neighbours of both, with both signs.
inline std::vector<float> rounding_cases(const std::vector<double>& value) {
  std::vector<float> cases;
  const auto add = [&](double center) {
    const float v = static_cast<float>(center);
    for (float x : {v, std::nextafter(v, 0.0f), std::nextafter(v, HUGE_VALF)}) {
      cases.push_back(x);
      cases.push_back(-x);
    }
  };
  for (size_t i = 0; i < value.size(); ++i) {
    add(value[i]);
    if (i + 1 < value.size()) add((value[i] + value[i + 1]) / 2);
  }
  return cases;
}

}  // namespace strata::test
