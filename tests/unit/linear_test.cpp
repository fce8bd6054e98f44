// linear and grouped_linear on the reference: hand-made products, formats, strides, tile edges, refusals.
#include <cmath>

#include "formats/quantize.h"
#include "op_test.h"
#include "ops/factories.h"

namespace strata {
namespace {

using test::Array;
using test::bf16_values;
using test::expect_refused;
using test::random_bf16;
using test::run;

std::vector<E4m3> random_codes(int64_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<E4m3> codes(static_cast<size_t>(n));
  for (E4m3& c : codes) {
    do {
      c.bits = static_cast<uint8_t>(generator());
    } while ((c.bits & 0x7F) == 0x7F);
  }
  return codes;
}

struct Bf16Case {
  Array<Bf16> x{{2, 3}, bf16_values({1, 2, 3, -1, 0.5, 4})};
  Array<Bf16> w{{2, 3}, bf16_values({1, 0, -1, 2, 2, 0.25})};
  Array<Bf16> y{{2, 2}};
  LinearWeight weight{.n = 2, .k = 3, .weight = w};
  LinearParams params{.x = x, .weight = &weight, .y = y};
};

TEST(Linear, Bf16ByHand) {
  Bf16Case c;
  run(ops::make_linear(), c.params);
  EXPECT_EQ(to_float(c.y[0]), -2.0f);
  EXPECT_EQ(to_float(c.y[1]), 6.75f);
  EXPECT_EQ(to_float(c.y[2]), -5.0f);
  EXPECT_EQ(to_float(c.y[3]), 0.0f);
}

TEST(Linear, OutputIsRoundedOnceOrFp32) {
  Array<Bf16> x({1, 2}, bf16_values({1.0f, 0x1p-8f})), w({1, 2}, bf16_values({1.0f, 1.0f}));
  const LinearWeight weight{.n = 1, .k = 2, .weight = w};
  Array<Bf16> rounded({1, 1});
  run(ops::make_linear(), {.x = x, .weight = &weight, .y = rounded});
  EXPECT_EQ(to_float(rounded[0]), 1.0f);
  Array<float> exact({1, 1});
  run(ops::make_linear(), {.x = x, .weight = &weight, .y = exact});
  EXPECT_EQ(exact[0], 1.00390625f);
}

// Sizes around the edges of tiles, scales with partial edge blocks, every activation format, rows with gaps; against plain sums.
TEST(Linear, BlockScaledWeightsOfAnySize) {
  for (const auto [tokens, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {17, 65, 130}, {16, 64, 128}, {3, 200, 384}}) {
    for (ActivationFormat format : {ActivationFormat::bf16, ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << n << " x " << k);
      const int64_t block_n = 48, block_k = 80, scale_rows = (n + 47) / 48, scale_columns = (k + 79) / 80;
      Array<Bf16> x({tokens, k + 5}, random_bf16(tokens * (k + 5), 1.0f, 1));
      Array<E4m3> w({n, k}, random_codes(n * k, 2));
      Array<float> scale({scale_rows, scale_columns});
      for (int64_t i = 0; i < scale_rows * scale_columns; ++i)
        scale[i] = std::ldexp(1.0f + 0.1f * static_cast<float>(i), static_cast<int>(i % 5) - 7);
      Array<float> y({tokens, n + 3});
      const LinearWeight weight{.n = n, .k = k, .weight = w, .scale = scale, .block_n = block_n, .block_k = block_k};
      const auto before = y.values();
      run(ops::make_linear(), {.x = x.view().columns(2, k), .weight = &weight, .y = y.view().columns(1, n), .activation = format});
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<double> activation(static_cast<size_t>(k));
        for (int64_t g = 0; g < k; g += 128) {
          const int64_t count = std::min<int64_t>(128, k - g);
          const Bf16* source = &x[t * (k + 5) + 2 + g];
          E4m3 codes[128];
          const float s =
              format == ActivationFormat::bf16 ? 1.0f : quantize_activation(source, count, format == ActivationFormat::fp8_ue8m0, codes);
          for (int64_t i = 0; i < count; ++i) {
            activation[static_cast<size_t>(g + i)] =
                format == ActivationFormat::bf16 ? to_float(source[i]) : double{to_float(codes[i])} * s;
          }
        }
        for (int64_t o = 0; o < n; ++o) {
          double sum = 0.0, size = 0.0;
          for (int64_t i = 0; i < k; ++i) {
            const double term =
                activation[static_cast<size_t>(i)] * to_float(w[o * k + i]) * scale[o / block_n * scale_columns + i / block_k];
            sum += term;
            size += std::fabs(term);
          }
          ASSERT_NEAR(y[t * (n + 3) + 1 + o], sum, 1e-7 * size) << t << " " << o;
        }
        for (int64_t gap : {int64_t{0}, n + 1, n + 2}) {
          const size_t i = static_cast<size_t>(t * (n + 3) + gap);
          EXPECT_EQ(std::memcmp(&y.values()[i], &before[i], sizeof(float)), 0) << "between the rows";
        }
      }
    }
  }
}

// Quantised x with its scales gives the same as the values it was made of; a last block of fewer channels has its scale.
TEST(Linear, CodesWithScales) {
  constexpr int64_t kTokens = 3, kN = 5, kK = 200, kBlocks = 2;
  for (ActivationFormat format : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
    Array<Bf16> x({kTokens, kK}, random_bf16(kTokens * kK, 1.0f, 1)), w({kN, kK}, random_bf16(kN * kK, 1.0f, 2));
    Array<E4m3> codes({kTokens, kK});
    Array<float> scale({kTokens, kBlocks + 1});
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t b = 0; b < kBlocks; ++b) {
        scale[t * (kBlocks + 1) + b] = quantize_activation(&x[t * kK + b * 128], std::min<int64_t>(128, kK - b * 128),
                                                           format == ActivationFormat::fp8_ue8m0, &codes[t * kK + b * 128]);
      }
    }
    const LinearWeight weight{.n = kN, .k = kK, .weight = w};
    Array<float> from_values({kTokens, kN}), from_codes({kTokens, kN});
    run(ops::make_linear(), {.x = x, .weight = &weight, .y = from_values, .activation = format});
    run(ops::make_linear(),
        {.x = codes, .x_scale = scale.view().columns(0, kBlocks), .weight = &weight, .y = from_codes, .activation = format});
    for (int64_t i = 0; i < kTokens * kN; ++i) EXPECT_EQ(from_codes[i], from_values[i]) << i;
  }
}

TEST(Linear, NoTokens) {
  Array<Bf16> x({0, 3}), y({0, 2});
  Bf16Case c;
  run(ops::make_linear(), {.x = x, .weight = &c.weight, .y = y});
}

TEST(Linear, RefusesPackedWeightsWithTheirName) {
  Bf16Case c;
  Array<uint8_t> packed({16});
  c.weight.weight = {};
  c.weight.packed = packed;
  c.weight.packing = "cpu/someone";
  try {
    run(ops::make_linear(), c.params);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("cpu/someone"));
  }
}

TEST(Linear, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_linear();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    Bf16Case c;
    change(c);
    expect_refused(op, c.params, words, c.y);
  };
  Array<float> floats({2, 3});
  Array<Bf16> wide({2, 4});
  Array<float> scale({1, 1});
  Array<E4m3> codes({2, 3}, std::vector<E4m3>(6, E4m3{0x38}));
  refused([&](Bf16Case& c) { c.params.x = {}; }, {"x", "bf16", "absent"});
  refused([&](Bf16Case& c) { c.params.x = floats; }, {"x", "bf16 or e4m3", "f32[2, 3]"});
  refused([&](Bf16Case& c) { c.params.x = codes; }, {"activation", "fp8", "bf16"});
  refused([&](Bf16Case& c) { c.params.x = codes, c.params.activation = ActivationFormat::fp8_f32; }, {"x_scale", "[2, 1]", "absent"});
  refused([&](Bf16Case& c) { c.params.x = codes, c.params.activation = ActivationFormat::fp8_f32, c.params.x_scale = scale; },
          {"x_scale", "[2, 1]", "f32[1, 1]"});
  Array<float> two_blocks({2, 2});
  refused([&](Bf16Case& c) { c.params.x = codes, c.params.activation = ActivationFormat::fp8_f32, c.params.x_scale = two_blocks; },
          {"x_scale", "[2, 1]", "f32[2, 2]"});
  refused([&](Bf16Case& c) { c.params.x = codes, c.params.activation = ActivationFormat::fp8_f32, c.params.x_scale = wide; },
          {"x_scale", "f32", "bf16"});
  refused([&](Bf16Case& c) { c.params.x_scale = scale; }, {"x_scale", "absent", "f32[1, 1]"});
  refused([&](Bf16Case& c) { c.params.x = wide; }, {"weight.k", "4", "3"});
  refused([&](Bf16Case& c) { c.params.weight = nullptr; }, {"weight", "null"});
  refused([&](Bf16Case& c) { c.weight.groups = 2; }, {"weight.groups", "1", "2"});
  refused([&](Bf16Case& c) { c.weight.n = 3; }, {"weight.weight", "[3, 3]", "bf16[2, 3]"});
  refused([&](Bf16Case& c) { c.weight.n = 0; }, {"weight", "n >= 1", "0"});
  refused([&](Bf16Case& c) { c.weight.n = int64_t{1} << 50; }, {"weight.n", "2^50", "1125899906842624"});
  refused([&](Bf16Case& c) { c.weight.weight = {}; }, {"weight", "neither"});
  refused([&](Bf16Case& c) { c.weight.packing = "x"; }, {"weight.packing", "'x'"});
  refused([&](Bf16Case& c) { c.weight.weight = wide.view().columns(0, 3); }, {"weight.weight", "contiguous"});
  refused([&](Bf16Case& c) { c.weight.scale = scale; }, {"weight.scale", "absent", "f32[1, 1]"});
  refused([&](Bf16Case& c) { c.weight.weight = codes; }, {"weight.scale", "[1, 1]", "absent"});
  refused([&](Bf16Case& c) { c.weight.weight = codes, c.weight.scale = scale, c.weight.block_k = 2; },
          {"weight.scale", "[1, 2]", "f32[1, 1]"});
  refused([&](Bf16Case& c) { c.weight.weight = codes, c.weight.scale = scale, c.weight.block_n = 0; }, {"block_n", "at least 1", "0"});
  refused([&](Bf16Case& c) { c.params.y.shape[1] = 3; }, {"y", "[2, 2]", "bf16[2, 3]"});
  refused([&](Bf16Case& c) { c.params.y.dtype = DType::f16; }, {"y", "bf16 or f32", "f16"});
  refused([&](Bf16Case& c) { c.params.y.stride[0] = 1; }, {"y", "stride", "[1, 1]"});
  refused([&](Bf16Case& c) { c.params.y.device = {DeviceKind::cuda, 0}; }, {"y", "cpu", "cuda:0"});
  refused([&](Bf16Case& c) { c.params.x.stride[1] = 2; }, {"x", "stride 1", "2"});
}

TEST(Linear, AWeightIsRowMajorOrPackedButNotBoth) {
  Bf16Case c;
  Array<uint8_t> packed({16});
  const auto message = [&] {
    try {
      ops::make_linear().check(c.params, {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  c.weight.packed = packed;
  EXPECT_THAT(message(), testing::HasSubstr("linear: weight must hold either a row-major matrix or a packed one, holds both"));
  c.weight.weight = {};
  EXPECT_THAT(message(), testing::HasSubstr("weight.packing must name the packing"));
  c.weight.packing = "cpu/someone";
  EXPECT_EQ(message(), "accepted");
}

struct GroupedCase {
  static constexpr int64_t kTokens = 2, kGroups = 2, kDepth = 128, kOutputs = 3;
  Array<Bf16> x{{kTokens, kGroups, kDepth}, random_bf16(kTokens* kGroups* kDepth, 1.0f, 3)};
  Array<Bf16> w{{kGroups * kOutputs, kDepth}, random_bf16(kGroups* kOutputs* kDepth, 1.0f, 4)};
  Array<Bf16> y{{kTokens, kGroups, kOutputs}};
  LinearWeight weight{.n = kOutputs, .k = kDepth, .groups = kGroups, .weight = w};
  GroupedLinearParams params{.x = x, .weight = &weight, .y = y};
};

TEST(GroupedLinear, EachGroupHasItsOwnRows) {
  GroupedCase c;
  run(ops::make_grouped_linear(), c.params);
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t g = 0; g < 2; ++g) {
      for (int64_t o = 0; o < 3; ++o) {
        double sum = 0.0;
        for (int64_t k = 0; k < 128; ++k) sum += double{to_float(c.x[(t * 2 + g) * 128 + k])} * to_float(c.w[(g * 3 + o) * 128 + k]);
        EXPECT_EQ(c.y[(t * 2 + g) * 3 + o].bits, to_bf16(static_cast<float>(sum)).bits);
      }
    }
  }
}

TEST(GroupedLinear, CodesWithScales) {
  GroupedCase c;
  Array<E4m3> codes({2, 2, 128}, random_codes(512, 5));
  Array<float> scale({2, 2, 1}, {0.5f, 2.0f, 4.0f, 0.25f});
  c.params.x = codes;
  c.params.x_scale = scale;
  run(ops::make_grouped_linear(), c.params);
  for (int64_t row = 0; row < 4; ++row) {
    double sum = 0.0;
    for (int64_t k = 0; k < 128; ++k) sum += double{to_float(codes[row * 128 + k])} * to_float(c.w[(row % 2 * 3 + 1) * 128 + k]);
    EXPECT_EQ(c.y[row * 3 + 1].bits, to_bf16(static_cast<float>(sum * scale[row])).bits) << row;
  }
}

TEST(GroupedLinear, ResultsAsCodes) {
  constexpr int64_t kTokens = 2, kGroups = 2, kDepth = 16, kOutputs = 256, kBlocks = kTokens * kGroups * kOutputs / kActivationBlock;
  Array<Bf16> x({kTokens, kGroups, kDepth}, random_bf16(kTokens * kGroups * kDepth, 1.0f, 6));
  Array<Bf16> w({kGroups * kOutputs, kDepth}, random_bf16(kGroups * kOutputs * kDepth, 1.0f, 7)), y({kTokens, kGroups, kOutputs});
  Array<E4m3> codes({kTokens, kGroups, kOutputs});
  Array<float> scale({kTokens, kGroups, kOutputs / kActivationBlock});
  const LinearWeight weight{.n = kOutputs, .k = kDepth, .groups = kGroups, .weight = w};
  const auto op = ops::make_grouped_linear();
  run(op, GroupedLinearParams{.x = x, .weight = &weight, .y = y});
  for (const ActivationFormat format : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
    run(op, GroupedLinearParams{.x = x, .weight = &weight, .y = codes, .y_scale = scale, .y_format = format});
    for (int64_t b = 0; b < kBlocks; ++b) {
      E4m3 expected[kActivationBlock];
      const int64_t first = b * kActivationBlock;
      EXPECT_EQ(scale[b], quantize_activation(&y[first], kActivationBlock, format == ActivationFormat::fp8_ue8m0, expected)) << b;
      for (int64_t i = 0; i < kActivationBlock; ++i) EXPECT_EQ(codes[first + i].bits, expected[i].bits) << first + i;
    }
  }
}

TEST(GroupedLinear, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_grouped_linear();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    GroupedCase c;
    change(c);
    expect_refused(op, c.params, words, c.y);
  };
  Array<E4m3> codes({2, 2, 128}), odd({2, 2, 100});
  Array<float> scale({2, 2, 1}), wide_scale({2, 2, 2});
  refused([&](GroupedCase& c) { c.params.x.rank = 2; }, {"x", "[any, any, any]", "bf16[2, 2]"});
  refused([&](GroupedCase& c) { c.params.x_scale = scale; }, {"x_scale", "absent", "f32[2, 2, 1]"});
  refused([&](GroupedCase& c) { c.params.x = codes; }, {"x_scale", "[2, 2, 1]", "absent"});
  refused([&](GroupedCase& c) { c.params.x = codes, c.params.x_scale = wide_scale; }, {"x_scale", "[2, 2, 1]", "f32[2, 2, 2]"});
  refused([&](GroupedCase& c) { c.params.x = odd; }, {"x", "multiple of 128", "e4m3[2, 2, 100]"});
  refused([&](GroupedCase& c) { c.weight.groups = 1; }, {"weight.groups", "2", "1"});
  refused([&](GroupedCase& c) { c.params.y.shape[2] = 4; }, {"y", "[2, 2, 3]", "bf16[2, 2, 4]"});
  refused([&](GroupedCase& c) { c.params.y.dtype = DType::f32; }, {"y", "bf16", "f32"});
  refused([&](GroupedCase& c) { c.params.y_scale = scale; }, {"y_scale", "absent", "f32[2, 2, 1]"});
  Array<E4m3> y_codes({2, 2, 3}), wide_codes({2, 2, 128});
  refused([&](GroupedCase& c) { c.params.y = y_codes; }, {"weight.n", "multiple of 128", "3"});
  Array<Bf16> wide_weight({2 * 128, 128});
  refused(
      [&](GroupedCase& c) {
        c.weight.n = 128;
        c.weight.weight = wide_weight;
        c.params.y = wide_codes;
      },
      {"y_format", "fp8", "bf16"});
}

// On a CUDA device memory is as aligned as its rows are apart: what a check says without one.
TEST(Linear, OnCudaMemoryIsAsAlignedAsItsRows) {
  constexpr DeviceId kCuda{DeviceKind::cuda, 0};
  const auto op = ops::make_linear();
  const auto view = [&](uintptr_t address, DType dtype, std::initializer_list<int64_t> shape, int64_t stride) {
    TensorView v = TensorView::contiguous(reinterpret_cast<void*>(address), dtype, kCuda, shape);
    v.stride[0] = stride;
    return v;
  };
  const auto refusal = [&](const TensorView& x, uintptr_t weight, const TensorView& y) -> std::string {
    const LinearWeight w{.n = 24, .k = 40, .weight = view(weight, DType::bf16, {24, 40}, 40)};
    try {
      op.check({.x = x, .weight = &w, .y = y}, kCuda);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "";
  };
  const auto x = [&](uintptr_t address, int64_t stride) { return view(address, DType::bf16, {3, 40}, stride); };
  const auto y = [&](uintptr_t address, int64_t stride) { return view(address, DType::f32, {3, 24}, stride); };
  EXPECT_EQ(refusal(x(0x1010, 48), 0x1010, y(0x1010, 24)), "");
  EXPECT_EQ(refusal(x(0x1008, 44), 0x1010, y(0x1004, 25)), "");  // rows 88 and 100 bytes apart
  EXPECT_EQ(refusal(x(0x1002, 41), 0x1010, y(0x1008, 26)), "");
  EXPECT_THAT(refusal(x(0x1008, 48), 0x1010, y(0x1010, 24)),
              testing::HasSubstr("linear: x must begin at a multiple of 16 bytes, is at 0x1008"));
  EXPECT_THAT(refusal(x(0x1004, 44), 0x1010, y(0x1010, 24)), testing::HasSubstr("x must begin at a multiple of 8 bytes, is at 0x1004"));
  EXPECT_THAT(refusal(x(0x1010, 48), 0x1010, y(0x1004, 24)), testing::HasSubstr("y must begin at a multiple of 16 bytes, is at 0x1004"));
  EXPECT_THAT(refusal(x(0x1010, 48), 0x1008, y(0x1010, 24)), testing::HasSubstr("weight.weight must begin at a multiple of 16 bytes"));
}

}  // namespace
}  // namespace strata
