// A weight packed as codes for activations of bf16 multiplies as its dequantised values do, bit for bit: by rows of the identity.
#include <cmath>

#include "cuda/cuda_fixture.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "inputs.h"
#include "ops/linear_case.h"
#include "strata/op_set.h"

namespace strata {
namespace {

constexpr int64_t kGroups = 2, kN = 256, kK = 384, kBlock = 128;

class MixedWeight : public test::CudaTest, public testing::WithParamInterface<int64_t> {};

// Every number that e4m3 has, beside every other one, times powers of two whose products bf16 has.
TEST_P(MixedWeight, IsItsDequantisedValues) {
  const int64_t tokens = GetParam();
  cases::Inputs in(device_, {});
  std::vector<uint8_t> codes(kGroups * kN * kK);
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<uint8_t>(i % kK * 37 + i / kK * 101 + i / 4096);
    codes[i] = (code & 0x7F) == 0x7F ? 0 : code;
  }
  const float powers[] = {1.0f, 0x1p-10f, 0x1p7f, 0x1p8f, 0x1p-100f, 0x1p100f};
  std::vector<float> scales(kGroups * kN / kBlock * (kK / kBlock));
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = powers[i % std::size(powers)];
  LinearWeight weight{.n = kN, .k = kK, .groups = kGroups};
  weight.weight = in.values(DType::e4m3, {kGroups * kN, kK}, codes);
  weight.scale = in.values(DType::f32, {kGroups * kN / kBlock, kK / kBlock}, scales);
  weight.power_of_two_scales = true;
  const LinearWeight* const packed = cases::pack_weight(weight, "cuda/sm90_mixed", default_ops(), in);
  if (packed == nullptr) GTEST_SKIP() << "the device has no packing for it";

  // Token t of a call has the channel first + t alone.
  for (int64_t first = 0; first < kK; first += tokens) {
    std::vector<float> x(static_cast<size_t>(tokens * kGroups * kK));
    for (int64_t t = 0; t < tokens && first + t < kK; ++t) {
      for (int64_t g = 0; g < kGroups; ++g) x[static_cast<size_t>((t * kGroups + g) * kK + first + t)] = 1.0f;
    }
    const GroupedLinearParams p{
        .x = in.bf16_values({tokens, kGroups, kK}, x), .weight = packed, .y = in.output(DType::bf16, {tokens, kGroups, kN})};
    run(default_ops().grouped_linear, p);
    const std::vector<uint8_t> y = bytes_at(p.y.data, p.y.bytes());
    for (int64_t t = 0; t < tokens && first + t < kK; ++t) {
      for (int64_t row = 0; row < kGroups * kN; ++row) {
        const int64_t channel = first + t;
        const float want = to_float(E4m3{codes[static_cast<size_t>(row * kK + channel)]}) *
                           scales[static_cast<size_t>(row / kBlock * (kK / kBlock) + channel / kBlock)];
        const float got = to_float(reinterpret_cast<const Bf16*>(y.data())[t * kGroups * kN + row]);
        ASSERT_EQ(got, want) << "token " << t << ", channel " << channel << ", row " << row;
      }
    }
  }
}

// By the kernel for few tokens, in one launch and in two, and by cuBLASLt with the weight as bf16 in the workspace.
INSTANTIATE_TEST_SUITE_P(Tokens, MixedWeight, testing::Values(1, 8, 40, 64, 128, 384));

TEST_F(MixedWeight, ACodeThatIsNoNumberIsNoneInTheResult) {
  for (const int64_t tokens : {1, 300}) {
    cases::Inputs in(device_, {});
    std::vector<uint8_t> codes(kN * kK, 0x38);
    codes[200 * kK + 150] = 0xFF;
    LinearWeight weight{.n = kN, .k = kK};
    weight.weight = in.values(DType::e4m3, {kN, kK}, codes);
    weight.scale = in.values(DType::f32, {kN / kBlock, kK / kBlock}, std::vector<float>(kN / kBlock * (kK / kBlock), 1.0f));
    weight.power_of_two_scales = true;
    const LinearWeight* const packed = cases::pack_weight(weight, "cuda/sm90_mixed", default_ops(), in);
    if (packed == nullptr) GTEST_SKIP() << "the device has no packing for it";
    const GroupedLinearParams p{.x = in.bf16({tokens, 1, kK}), .weight = packed, .y = in.output(DType::bf16, {tokens, 1, kN})};
    run(default_ops().grouped_linear, p);
    const std::vector<uint8_t> y = bytes_at(p.y.data, p.y.bytes());
    const auto* const values = reinterpret_cast<const Bf16*>(y.data());
    for (int64_t t = 0; t < tokens; ++t) {
      EXPECT_TRUE(std::isnan(to_float(values[t * kN + 200]))) << t;
      EXPECT_FALSE(std::isnan(to_float(values[t * kN + 100]))) << t;
    }
  }
}

}  // namespace
}  // namespace strata
