// grouped_linear with quantised results: the bytes are the quantised results of the same call with bf16 results.
#include <cstring>
#include <string>

#include "cuda/cuda_fixture.h"
#include "formats/quantize.h"
#include "testkit/harness/inputs.h"
#include "testkit/cases/linear_case.h"
#include "strata/op_set.h"

namespace strata {
namespace {

using testkit::WeightFormat;

struct Shape {
  int64_t tokens, groups, n, k;
  WeightFormat weight = WeightFormat::bf16;
  bool mixed = false;  // an e4m3 weight packed for activations of bf16
};

class GroupedCodes : public test::CudaTest, public testing::WithParamInterface<Shape> {};

TEST_P(GroupedCodes, AsByTheQuantiserBehind) {
  const auto [tokens, groups, n, k, format_of_weight, mixed] = GetParam();
  const bool takes_codes = format_of_weight != WeightFormat::bf16 && !mixed;
  testkit::Inputs in(device_, {});
  GroupedLinearParams p{.x = takes_codes ? in.e4m3({tokens, groups, k}, 100.0) : in.bf16({tokens, groups, k}),
                        .weight = testkit::make_weight(in, {.n = n, .k = k, .groups = groups, .format = format_of_weight}),
                        .y = in.output(DType::bf16, {tokens, groups, n})};
  if (mixed) {
    p.weight = testkit::pack_weight(*p.weight, "cuda/sm90_mixed", default_ops(), in);
    if (p.weight == nullptr) GTEST_SKIP() << "the device has no packing for it";
  }
  if (takes_codes) p.x_scale = testkit::activation_scales(in, {tokens, groups, k / kActivationBlock}, /*ue8m0=*/true);
  run(default_ops().grouped_linear, p);
  const std::vector<uint8_t> values = bytes_at(p.y.data, p.y.bytes());
  const auto blocks = static_cast<size_t>(p.y.numel() / kActivationBlock);
  for (const ActivationFormat format : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
    std::vector<uint8_t> codes(blocks * kActivationBlock), scales(blocks * sizeof(float));
    for (size_t i = 0; i < blocks; ++i) {
      const float scale =
          quantize_activation(reinterpret_cast<const Bf16*>(values.data()) + i * kActivationBlock, kActivationBlock,
                              format == ActivationFormat::fp8_ue8m0, reinterpret_cast<E4m3*>(codes.data() + i * kActivationBlock));
      std::memcpy(scales.data() + i * sizeof(float), &scale, sizeof(float));
    }
    p.y = in.output(DType::e4m3, {tokens, groups, n});
    p.y_scale = in.output(DType::f32, {tokens, groups, n / kActivationBlock});
    p.y_format = format;
    run(default_ops().grouped_linear, p);
    EXPECT_EQ(codes, bytes_at(p.y.data, p.y.bytes()));
    EXPECT_EQ(scales, bytes_at(p.y_scale.data, p.y_scale.bytes()));
  }
}

// On Hopper tiles of 64 features in pairs, of 128, and more tokens than those take; of FP8 tiles of 128 by one block and by two, of 64.
INSTANTIATE_TEST_SUITE_P(
    Shapes, GroupedCodes,
    testing::Values(Shape{1, 8, 1024, 4096}, Shape{32, 8, 1024, 4096}, Shape{17, 4, 768, 264}, Shape{1, 16, 1024, 512},
                    Shape{11, 16, 1024, 512}, Shape{32, 16, 1024, 512}, Shape{33, 8, 256, 512},
                    Shape{1, 16, 1024, 512, WeightFormat::e4m3_ue8m0}, Shape{9, 16, 1024, 512, WeightFormat::e4m3_f32},
                    Shape{32, 16, 1024, 512, WeightFormat::e4m3_ue8m0}, Shape{1, 8, 1024, 4096, WeightFormat::e4m3_ue8m0},
                    Shape{12, 8, 1024, 4096, WeightFormat::e4m3_ue8m0}, Shape{32, 8, 1024, 4096, WeightFormat::e4m3_f32},
                    Shape{17, 8, 1024, 256, WeightFormat::e4m3_ue8m0}, Shape{60, 8, 1024, 4096, WeightFormat::e4m3_ue8m0},
                    Shape{128, 16, 1024, 512, WeightFormat::e4m3_ue8m0}, Shape{33, 8, 1024, 512, WeightFormat::e4m3_ue8m0},
                    Shape{1, 8, 1024, 4096, WeightFormat::e4m3_ue8m0, true}, Shape{9, 16, 1024, 512, WeightFormat::e4m3_ue8m0, true},
                    Shape{32, 8, 1024, 4096, WeightFormat::e4m3_ue8m0, true}, Shape{64, 8, 1024, 4096, WeightFormat::e4m3_ue8m0, true},
                    Shape{100, 16, 1024, 512, WeightFormat::e4m3_ue8m0, true}, Shape{200, 8, 1024, 512, WeightFormat::e4m3_ue8m0, true},
                    Shape{300, 8, 1024, 512, WeightFormat::e4m3_ue8m0, true}),
    [](const auto& p) {
      const Shape& s = p.param;
      return "tokens" + std::to_string(s.tokens) + "_groups" + std::to_string(s.groups) + "_n" + std::to_string(s.n) + "_k" +
             std::to_string(s.k) +
             (s.weight == WeightFormat::bf16       ? ""
              : s.weight == WeightFormat::e4m3_f32 ? "_fp8_f32"
                                                   : "_fp8") +
             (s.mixed ? "_mixed" : "");
    });

}  // namespace
}  // namespace strata
