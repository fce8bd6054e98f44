// What whole tensors may differ by: testkit/harness/compare.h.
#include "testkit/harness/compare.h"

#include <gtest/gtest.h>

#include <cstring>

#include "strata/bf16.h"

namespace strata::testkit {
namespace {

// A dimension much larger than 511 others, as in attention's output if one key dominates.
HostArray row(float largest) {
  HostArray a{.dtype = DType::bf16, .shape = {1, 512}, .data = std::vector<std::byte>(512 * sizeof(uint16_t))};
  for (int i = 0; i < 512; ++i) {
    const float value = i == 7 ? largest : i % 2 == 0 ? 0.03125f : -0.03125f;
    const Bf16 bits = to_bf16(value);
    std::memcpy(a.data.data() + sizeof(bits) * static_cast<size_t>(i), &bits, sizeof(bits));
  }
  return a;
}

constexpr double kCos = 5e-6;

TEST(Compare, ATieOfTheLargestElementMayBeRoundedToEitherSide) {
  EXPECT_EQ(compare("out", row(1.1171875f), row(1.125f), close(0, 2.01 / 128, kCos)), "");
  EXPECT_EQ(compare("out", row(1.125f), row(1.1171875f), close(0, 2.01 / 128, kCos)), "");
}

TEST(Compare, TheLargestElementMayNotBeTwoNumbersOff) {
  const std::string error = compare("out", row(1.109375f), row(1.125f), close(0, 2.01 / 128, kCos));
  EXPECT_NE(error.find("out has cos_diff"), std::string::npos) << error;
}

TEST(Compare, WithoutOneThatOutweighsTheOthersTheirSumCounts) {
  HostArray got = row(0.03125f), want = row(0.03125f);
  for (int i = 0; i < 512; i += 4) {  // one number off, of elements a quarter of all: 2^-14 / 8 of the whole
    const Bf16 bits = to_bf16(0.03125f + 0x1p-12f);
    std::memcpy(got.data.data() + sizeof(bits) * static_cast<size_t>(i), &bits, sizeof(bits));
  }
  const std::string error = compare("out", got, want, close(0, 2.01 / 128, kCos));
  EXPECT_NE(error.find("out has cos_diff"), std::string::npos) << error;
  EXPECT_EQ(compare("out", got, want, close(0, 2.01 / 128, 1e-5)), "");
}

}  // namespace
}  // namespace strata::testkit
