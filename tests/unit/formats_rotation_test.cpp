// The rotation of one vector and the Hadamard rotation, against their definitions.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "formats/hadamard.h"
#include "formats/rope.h"

namespace strata {
namespace {

std::vector<double> random_vector(size_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> distribution;
  std::vector<double> x(n);
  for (double& v : x) v = distribution(generator);
  return x;
}

// A table row for dim/2 angles.
std::vector<float> table_row(const std::vector<double>& angles) {
  std::vector<float> row;
  for (double a : angles) row.push_back(static_cast<float>(std::cos(a)));
  for (double a : angles) row.push_back(static_cast<float>(std::sin(a)));
  return row;
}

TEST(Rotate, QuarterTurnsSayWhichLanesPair) {
  const std::vector<float> row = {0, 1, /* sines */ 1, 0};  // pair 0: a quarter turn, pair 1: none
  float interleaved[] = {1, 2, 3, 4};
  rotate(interleaved, row.data(), 4, RopePairing::interleaved);
  EXPECT_EQ(std::vector<float>(interleaved, interleaved + 4), (std::vector<float>{-2, 1, 3, 4}));
  float halves[] = {1, 2, 3, 4};
  rotate(halves, row.data(), 4, RopePairing::half_split);
  EXPECT_EQ(std::vector<float>(halves, halves + 4), (std::vector<float>{-3, 2, 1, 4}));
  rotate(halves, row.data(), 4, RopePairing::half_split, true);
  EXPECT_EQ(std::vector<float>(halves, halves + 4), (std::vector<float>{1, 2, 3, 4}));
}

TEST(Rotate, IsTheComplexProductAndTheInverseTakesItBack) {
  const std::vector<double> angles = {0.1, 1.0, 2.5, 100.0};
  const std::vector<float> row = table_row(angles);
  for (RopePairing pairing : {RopePairing::interleaved, RopePairing::half_split}) {
    const std::vector<double> x = random_vector(8, 1);
    std::vector<double> y = x;
    rotate(y.data(), row.data(), 8, pairing);
    for (size_t i = 0; i < 4; ++i) {
      const size_t a = pairing == RopePairing::interleaved ? 2 * i : i, b = pairing == RopePairing::interleaved ? 2 * i + 1 : i + 4;
      EXPECT_NEAR(y[a], x[a] * std::cos(angles[i]) - x[b] * std::sin(angles[i]), 1e-6);
      EXPECT_NEAR(y[b], x[b] * std::cos(angles[i]) + x[a] * std::sin(angles[i]), 1e-6);
    }
    rotate(y.data(), row.data(), 8, pairing, true);
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(y[i], x[i], 1e-6);
  }
}

TEST(Hadamard, IsTheSylvesterMatrixOverRootN) {
  for (size_t n : {1u, 2u, 4u, 32u, 64u, 128u}) {
    const std::vector<double> x = random_vector(n, 2);
    std::vector<double> y = x;
    hadamard(y.data(), static_cast<int64_t>(n));
    for (size_t i = 0; i < n; ++i) {
      double expected = 0.0;
      for (size_t j = 0; j < n; ++j) expected += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
      EXPECT_NEAR(y[i], expected / std::sqrt(static_cast<double>(n)), 1e-12) << n;
    }
    hadamard(y.data(), static_cast<int64_t>(n));
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i], 1e-12) << "its own inverse";
  }
}

}  // namespace
}  // namespace strata
