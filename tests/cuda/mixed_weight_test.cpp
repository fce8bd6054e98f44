// An e4m3 weight packed for bf16 activations gives the products of its dequantised values, bit for bit: tested with rows of the identity.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/cuda_fixture.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "testkit/harness/inputs.h"
#include "testkit/cases/linear_case.h"
#include "strata/op_set.h"

namespace strata {
namespace {

constexpr int64_t kN = 256, kK = 384, kBlock = 128;
// Of 32 groups 300 tokens and more are the kernel's for many tokens.
constexpr int64_t kFewGroups = 2, kManyGroups = 32;

struct Call {
  int64_t tokens, groups;
};

class MixedWeight : public test::CudaTest, public testing::WithParamInterface<Call> {};

// Every e4m3 number next to every other one, times powers of two whose products are exact in bf16.
TEST_P(MixedWeight, IsItsDequantisedValues) {
  const auto [tokens, groups] = GetParam();
  testkit::Inputs in(device_, {});
  std::vector<uint8_t> codes(groups * kN * kK);
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<uint8_t>(i % kK * 37 + i / kK * 101 + i / 4096);
    codes[i] = (code & 0x7F) == 0x7F ? 0 : code;
  }
  const float powers[] = {1.0f, 0x1p-10f, 0x1p7f, 0x1p8f, 0x1p-100f, 0x1p100f};
  std::vector<float> scales(groups * kN / kBlock * (kK / kBlock));
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = powers[i % std::size(powers)];
  LinearWeight weight{.n = kN, .k = kK, .groups = groups};
  weight.weight = in.values(DType::e4m3, {groups * kN, kK}, codes);
  weight.scale = in.values(DType::f32, {groups * kN / kBlock, kK / kBlock}, scales);
  weight.power_of_two_scales = true;
  const LinearWeight* const packed = testkit::pack_weight(weight, "cuda/sm90_mixed", default_ops(), in);
  if (packed == nullptr) GTEST_SKIP() << "the device has no packing for it";

  // Token t of a call has the channel first + t alone.
  for (int64_t first = 0; first < kK; first += tokens) {
    std::vector<float> x(static_cast<size_t>(tokens * groups * kK));
    for (int64_t t = 0; t < tokens && first + t < kK; ++t) {
      for (int64_t g = 0; g < groups; ++g) x[static_cast<size_t>((t * groups + g) * kK + first + t)] = 1.0f;
    }
    const GroupedLinearParams p{
        .x = in.bf16_values({tokens, groups, kK}, x), .weight = packed, .y = in.output(DType::bf16, {tokens, groups, kN})};
    run(default_ops().grouped_linear, p);
    const std::vector<uint8_t> y = bytes_at(p.y.data, p.y.bytes());
    for (int64_t t = 0; t < tokens && first + t < kK; ++t) {
      for (int64_t row = 0; row < groups * kN; ++row) {
        const int64_t channel = first + t;
        const float want = to_float(E4m3{codes[static_cast<size_t>(row * kK + channel)]}) *
                           scales[static_cast<size_t>(row / kBlock * (kK / kBlock) + channel / kBlock)];
        const float got = to_float(reinterpret_cast<const Bf16*>(y.data())[t * groups * kN + row]);
        ASSERT_EQ(got, want) << "token " << t << ", channel " << channel << ", row " << row;
      }
    }
  }
}

// By the kernel for few tokens, tiles of each size and several, and by that for many.
INSTANTIATE_TEST_SUITE_P(Calls, MixedWeight,
                         testing::Values(Call{1, kFewGroups}, Call{4, kFewGroups}, Call{8, kFewGroups}, Call{40, kFewGroups},
                                         Call{64, kFewGroups}, Call{100, kFewGroups}, Call{384, kFewGroups}, Call{384, kManyGroups}),
                         [](const auto& p) {
                           return "tokens" + std::to_string(p.param.tokens) + "_groups" + std::to_string(p.param.groups);
                         });

TEST_F(MixedWeight, ACodeThatIsNoNumberIsNoneInTheResult) {
  for (const auto [tokens, groups] : {Call{1, kFewGroups}, Call{300, kFewGroups}, Call{300, kManyGroups}}) {
    testkit::Inputs in(device_, {});
    std::vector<uint8_t> codes(groups * kN * kK, 0x38);
    codes[200 * kK + 150] = 0xFF;
    LinearWeight weight{.n = kN, .k = kK, .groups = groups};
    weight.weight = in.values(DType::e4m3, {groups * kN, kK}, codes);
    const int64_t rows = groups * kN / kBlock, columns = kK / kBlock;
    weight.scale = in.values(DType::f32, {rows, columns}, std::vector<float>(rows * columns, 1.0f));
    weight.power_of_two_scales = true;
    const LinearWeight* const packed = testkit::pack_weight(weight, "cuda/sm90_mixed", default_ops(), in);
    if (packed == nullptr) GTEST_SKIP() << "the device has no packing for it";
    const GroupedLinearParams p{.x = in.bf16({tokens, groups, kK}), .weight = packed, .y = in.output(DType::bf16, {tokens, groups, kN})};
    run(default_ops().grouped_linear, p);
    const std::vector<uint8_t> y = bytes_at(p.y.data, p.y.bytes());
    const auto* const values = reinterpret_cast<const Bf16*>(y.data());
    for (int64_t t = 0; t < tokens; ++t) {
      EXPECT_TRUE(std::isnan(to_float(values[t * groups * kN + 200]))) << t;
      EXPECT_FALSE(std::isnan(to_float(values[t * groups * kN + 100]))) << t;
    }
  }
}

// Tokens of any size, next to larger ones of the same quantisation block that a weight of zero removes, and NaN and infinities.
TEST_F(MixedWeight, TokensOfAnySize) {
  constexpr int64_t kChannels = 256, kLarge = 3, kSmall = 77;
  testkit::Inputs in(device_, {});
  std::vector<uint8_t> codes(kN * kChannels, 0x38);  // 1
  for (int64_t row = 0; row < kN; ++row) codes[static_cast<size_t>(row * kChannels + kLarge)] = row % 2 == 0 ? 0x00 : 0x38;
  LinearWeight weight{.n = kN, .k = kChannels, .groups = 1};
  weight.weight = in.values(DType::e4m3, {kN, kChannels}, codes);
  weight.scale = in.values(DType::f32, {kN / kBlock, kChannels / kBlock}, std::vector<float>(kN / kBlock * (kChannels / kBlock), 1.0f));
  weight.power_of_two_scales = true;
  const LinearWeight* const packed = testkit::pack_weight(weight, "cuda/sm90_mixed", default_ops(), in);
  if (packed == nullptr) GTEST_SKIP() << "the device has no packing for it";
  const auto multiply = [&](int64_t tokens, float large, float small) {
    std::vector<float> x(static_cast<size_t>(tokens * kChannels));
    for (int64_t t = 0; t < tokens; ++t) {
      x[static_cast<size_t>(t * kChannels + kLarge)] = large;
      x[static_cast<size_t>(t * kChannels + kSmall)] = small;
    }
    const GroupedLinearParams p{
        .x = in.bf16_values({tokens, 1, kChannels}, x), .weight = packed, .y = in.output(DType::bf16, {tokens, 1, kN})};
    run(default_ops().grouped_linear, p);
    const std::vector<uint8_t> y = bytes_at(p.y.data, p.y.bytes());
    std::vector<float> rows;  // of each token, without its large value and with it
    for (int64_t t = 0; t < tokens; ++t) {
      for (const int64_t row : {100, 101}) rows.push_back(to_float(reinterpret_cast<const Bf16*>(y.data())[t * kN + row]));
    }
    return rows;
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int64_t tokens : {1, 2, 3, 4, 5}) {
    for (int exponent = -126; exponent < 120; exponent += 5) {
      for (const int below : {0, 8, 17, 24, 27}) {
        if (exponent - below < -126) continue;
        const float large = std::ldexp(1.0f, exponent), small = std::ldexp(-1.3359375f, exponent - below);
        const std::vector<float> rows = multiply(tokens, large, small);
        for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
          ASSERT_EQ(rows[2 * t], small) << "token " << t << " of " << tokens << ", 2^" << exponent << ", 2^-" << below << " of it";
          ASSERT_EQ(rows[2 * t + 1], to_float(to_bf16(large + small)));
        }
      }
    }
    const std::vector<float> infinite = multiply(tokens, -kInfinity, 1.0f);
    const std::vector<float> none = multiply(tokens, 1.0f, std::nanf(""));
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      EXPECT_TRUE(std::isnan(infinite[2 * t])) << t;  // times zero
      EXPECT_EQ(infinite[2 * t + 1], -kInfinity) << t;
      EXPECT_TRUE(std::isnan(none[2 * t]) && std::isnan(none[2 * t + 1])) << t;
    }
  }
}

}  // namespace
}  // namespace strata
