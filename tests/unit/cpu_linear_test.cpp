// The CPU's linear layers against the scalar reference: every implementation by name, at every instruction-set cap that it takes,
// row-major and packed weights, strided rows.
#include "backends/cpu/linear/amx_format.h"
#include <gmock/gmock.h>

#include "unit/cpu_harness.h"

namespace strata::cpu_test {
namespace {

struct Shape {
  int64_t tokens, groups, n, k;
};
enum class Weights { bf16, e4m3_pow2, e4m3_f32 };

std::string describe(const Shape& s, Weights weights, ActivationFormat format) {
  return "tokens " + std::to_string(s.tokens) + " groups " + std::to_string(s.groups) + " n " + std::to_string(s.n) + " k " +
         std::to_string(s.k) + " weights " + std::to_string(static_cast<int>(weights)) + " activation " +
         std::to_string(static_cast<int>(format));
}

// A row-major weight with every finite e4m3 value.
struct Weight {
  Weight(const Shape& s, Weights kind, Random& random, int64_t block_k = 128) {
    const int64_t rows = s.groups * s.n, blocks_n = (rows + 127) / 128, blocks_k = (s.k + block_k - 1) / block_k;
    w.block_k = block_k;
    w.n = s.n;
    w.k = s.k;
    w.groups = s.groups;
    if (kind == Weights::bf16) {
      for (int64_t i = 0; i < rows * s.k; ++i) bf16.push_back(to_bf16(random.normal(0.1f)));
      w.weight = view(bf16, DType::bf16, {rows, s.k});
      return;
    }
    for (int64_t i = 0; i < rows * s.k; ++i) {
      codes.push_back(to_e4m3(random.normal(60.0f)));
      if (random.below(40) == 0) codes.back().bits = static_cast<uint8_t>(random.below(127) + 128 * random.below(2));
    }
    for (int64_t i = 0; i < blocks_n * blocks_k; ++i) {
      scales.push_back(kind == Weights::e4m3_pow2 ? pow2(-9 - static_cast<int>(random.below(3)))
                                                  : 0.001f + 0.0003f * std::abs(random.normal()));
    }
    w.weight = view(codes, DType::e4m3, {rows, s.k});
    w.scale = view(scales, DType::f32, {blocks_n, blocks_k});
  }
  LinearWeight w;
  std::vector<Bf16> bf16;
  std::vector<E4m3> codes;
  std::vector<float> scales;
};

// The weight in the layout of `packing`; not present when that packing does not take it.
struct Packed {
  Packed(const LinearWeight& weight, const std::string& packing, const std::shared_ptr<Device>& on) : device(on) {
    for (const WeightPacking& p : ops::make_weight_packings()) {
      const size_t bytes = p.name == packing ? p.packed_bytes(weight, *device) : 0;
      if (bytes == 0) continue;
      data = device->allocate(bytes);
      p.pack(weight, *device, data);
      w.n = weight.n;
      w.k = weight.k;
      w.groups = weight.groups;
      w.packed = TensorView::contiguous(data, DType::u8, {}, {static_cast<int64_t>(bytes)});
      w.packing = packing;
    }
  }
  ~Packed() { device->deallocate(data); }
  std::shared_ptr<Device> device;
  void* data = nullptr;
  LinearWeight w;
};

// Rows of x and y are `gap` elements longer than they need to be.
struct Call {
  const Shape& shape;
  int64_t gap;
  DType y_type;
  ActivationFormat format;

  TensorView rows(void* data, DType type, int64_t inner) const {
    TensorView v = TensorView::contiguous(data, type, {}, {shape.tokens, shape.groups, inner});
    v.stride[0] = shape.groups * inner + gap;
    return v;
  }
  // One group as plain rows.
  static TensorView flat(TensorView v) {
    v.rank = 2;
    v.shape[1] = v.shape[2];
    v.stride[1] = 1;
    return v;
  }
  bool run(const std::string& name, std::vector<Bf16>& x, const LinearWeight& w, std::vector<uint8_t>& y, Device& device) const {
    const TensorView x_view = rows(x.data(), DType::bf16, shape.k), y_view = rows(y.data(), y_type, shape.n);
    if (shape.groups == 1) {
      static const auto op = ops::make_linear();
      return cpu_test::run(op, name, LinearParams{.x = flat(x_view), .weight = &w, .y = flat(y_view), .activation = format}, device);
    }
    static const auto op = ops::make_grouped_linear();
    return cpu_test::run(op, name, GroupedLinearParams{x_view, {}, &w, y_view}, device);
  }
  size_t row() const { return static_cast<size_t>(shape.groups * shape.n + gap); }
  double value(const std::vector<uint8_t>& y, int64_t t, int64_t o) const {
    const size_t i = static_cast<size_t>(t) * row() + static_cast<size_t>(o);
    if (y_type == DType::f32) {
      float v;
      std::memcpy(&v, y.data() + 4 * i, 4);
      return v;
    }
    Bf16 v;
    std::memcpy(&v, y.data() + 2 * i, 2);
    return to_float(v);
  }

  // Relative to the size of all outputs, because products cancel. The gaps between rows must be untouched.
  void expect_close(const std::vector<uint8_t>& expected, const std::vector<uint8_t>& actual, double tolerance,
                    const std::string& what) const {
    double error = 0, size = 0, worst = 0;
    const int64_t outputs = shape.groups * shape.n;
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int64_t o = 0; o < outputs; ++o) {
        const double e = value(expected, t, o), difference = std::abs(e - value(actual, t, o));
        ASSERT_FALSE(std::isnan(difference)) << what;
        error += difference * difference;
        size += e * e;
        worst = std::max(worst, difference - std::abs(e) / 128);
      }
      const size_t element = size_of(y_type), begin = (static_cast<size_t>(t) * row() + static_cast<size_t>(outputs)) * element;
      for (size_t i = begin; i < begin + static_cast<size_t>(gap) * element; ++i) ASSERT_EQ(actual[i], 0xAB) << what;
    }
    ASSERT_LE(std::sqrt(error), tolerance * std::sqrt(size)) << what;
    const double typical = std::sqrt(size / static_cast<double>(std::max<int64_t>(shape.tokens * outputs, 1)));
    ASSERT_LE(worst, 10 * tolerance * typical) << what;
  }
};

void compare(const Shape& s, Weights kind, ActivationFormat format, DType y_type, int64_t block_k = 128) {
  Random random(static_cast<unsigned>(s.tokens * 31 + s.n * 7 + s.k));
  const Call call{s, (s.k + s.n) % 3, y_type, format};
  Weight weight(s, kind, random, block_k);
  std::vector<Bf16> x;
  for (int64_t i = 0; i < s.tokens * (s.groups * s.k + call.gap); ++i)
    x.push_back(to_bf16(random.normal(random.below(50) == 0 ? 30.0f : 1.0f)));
  const std::vector<uint8_t> untouched(static_cast<size_t>(s.tokens) * call.row() * size_of(y_type), 0xAB);
  auto expected = untouched;
  const auto device = capped(CpuIsa::best);
  ASSERT_TRUE(call.run("reference", x, weight.w, expected, *device));
  // bf16 outputs are rounded once; "cpu/onednn" rounds activations whose scales are no powers of two once more.
  const double rounding = y_type == DType::bf16 ? 3e-3 : 1e-5;
  const double of_onednn = format == ActivationFormat::fp8_f32 ? 4e-3 : 0;
  const std::string what = describe(s, kind, format);
  for (const CpuIsa cap : kCaps) {
    auto actual = untouched;
    ASSERT_TRUE(call.run("cpu/simd", x, weight.w, actual, *capped(cap)));
    call.expect_close(expected, actual, rounding, what + " simd at " + to_string(cap));
  }
  for (const std::string name : {"cpu/amx", "cpu/onednn"}) {
    const Packed packed(weight.w, name, device);
    const double operands = name == "cpu/onednn" ? of_onednn : 0;
    auto actual = untouched;
    if (packed.data != nullptr) {
      ASSERT_TRUE(call.run(name, x, packed.w, actual, *device)) << name;
      call.expect_close(expected, actual, rounding + operands, what + " packed " + name);
    }
    actual = untouched;
    if (call.run(name, x, weight.w, actual, *device)) call.expect_close(expected, actual, rounding + operands, what + " row-major " + name);
  }
}

const Shape kShapes[] = {{1, 1, 1, 1},      {3, 1, 7, 13},   {5, 1, 33, 130},  {0, 1, 64, 256},   {1, 1, 512, 1024}, {17, 1, 130, 300},
                         {300, 1, 96, 384}, {4, 3, 40, 256}, {1, 8, 128, 512}, {19, 2, 256, 128}, {33, 1, 64, 64}};

TEST(CpuLinear, AgreesWithTheReference) {
  for (const Shape& s : kShapes) {
    for (const Weights kind : {Weights::bf16, Weights::e4m3_pow2, Weights::e4m3_f32}) {
      for (const auto format : {ActivationFormat::bf16, ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
        if (s.groups > 1 && format != ActivationFormat::bf16) continue;
        compare(s, kind, format, DType::bf16);
        if (s.groups == 1) compare(s, kind, format, DType::f32);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Several blocks of tokens of the AMX product, whose operands of 4096 features fill 1 MB with 128 tokens.
TEST(CpuLinear, AgreesOverSeveralBlocksOfTokens) {
  for (const Weights kind : {Weights::bf16, Weights::e4m3_pow2, Weights::e4m3_f32}) {
    for (const auto format : {ActivationFormat::bf16, ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
      compare({270, 1, 40, 4096}, kind, format, DType::bf16);
    }
  }
}

// Rows longer than what is widened at a time, and scale blocks across its ends: nothing past a row is read.
TEST(CpuLinear, TakesScaleBlocksOfAnyWidth) {
  for (const int64_t block_k : {1, 40, 65, 100, 1000, 1024, 1500, 2048}) {
    SCOPED_TRACE("blocks of " + std::to_string(block_k));
    for (const int64_t k : {1001, 1025, 2001}) {
      compare({3, 1, 33, k}, Weights::e4m3_pow2, ActivationFormat::bf16, DType::f32, block_k);
      compare({3, 2, 33, k}, Weights::e4m3_f32, ActivationFormat::bf16, DType::bf16, block_k);
    }
  }
}

// x times the identity: what is left of the quantiser, exactly.
TEST(CpuLinear, QuantisesActivationsExactly) {
  constexpr int64_t kTokens = 64, kDim = 320;
  Random random(11);
  auto x = random.bf16(kTokens * kDim);
  std::vector<Bf16> identity(kDim * kDim, Bf16{0});
  for (size_t i = 0; i < kDim; ++i) identity[i * kDim + i] = to_bf16(1.0f);
  LinearWeight w;
  w.n = w.k = kDim;
  w.weight = view(identity, DType::bf16, {kDim, kDim});
  for (const auto format : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
    std::vector<float> expected(x.size());
    for (int64_t i = 0; i < kTokens * kDim;) {
      const int64_t n = std::min<int64_t>(128, kDim - i % kDim);
      E4m3 codes[128];
      const float scale = quantize_activation(x.data() + i, n, format == ActivationFormat::fp8_ue8m0, codes);
      for (int64_t j = 0; j < n; ++j) expected[static_cast<size_t>(i + j)] = to_float(codes[j]) * scale;
      i += n;
    }
    for (const CpuIsa cap : kCaps) {
      std::vector<float> y(x.size());
      const LinearParams p{
          .x = view(x, DType::bf16, {kTokens, kDim}), .weight = &w, .y = view(y, DType::f32, {kTokens, kDim}), .activation = format};
      ASSERT_TRUE(run(ops::make_linear(), "cpu/simd", p, *capped(cap)));
      EXPECT_EQ(expected, y) << to_string(cap);
    }
  }
}

// The identity times a weight of every e4m3 value, with scales of any size: each value times its scale, exactly, for one token (widened in
// registers) and of all (widened in memory).
TEST(CpuLinear, WidensEveryCodeExactly) {
  constexpr int64_t kDim = 64, kFeatures = 8;
  std::vector<Bf16> identity(kDim * kDim, Bf16{0});
  for (size_t i = 0; i < kDim; ++i) identity[i * kDim + i] = to_bf16(1.0f);
  std::vector<E4m3> codes;
  for (int64_t i = 0; i < kFeatures * kDim; ++i) codes.push_back({static_cast<uint8_t>(i % 256)});
  for (const float scale : {1.0f, 0.3f, 0x1p-100f, -0x1.8p-3f, 0x1p118f, 0x1p119f}) {
    std::vector<float> scales(kFeatures, scale);
    LinearWeight w;
    w.n = kFeatures, w.k = kDim, w.block_n = 1, w.block_k = kDim;
    w.weight = view(codes, DType::e4m3, {kFeatures, kDim});
    w.scale = view(scales, DType::f32, {kFeatures, 1});
    for (const CpuIsa cap : kCaps) {
      std::vector<float> together(kDim * kFeatures), alone(kDim * kFeatures);
      const auto product = [&](int64_t first, int64_t tokens, std::vector<float>& y) {
        const LinearParams p{.x = view(identity, DType::bf16, {kDim, kDim}).slice(first, tokens),
                             .weight = &w,
                             .y = view(y, DType::f32, {kDim, kFeatures}).slice(first, tokens)};
        ASSERT_TRUE(run(ops::make_linear(), "cpu/simd", p, *capped(cap)));
      };
      product(0, kDim, together);
      for (int64_t t = 0; t < kDim; ++t) product(t, 1, alone);
      for (int64_t t = 0; t < kDim; ++t) {
        for (int64_t o = 0; o < kFeatures; ++o) {
          const int64_t place = o * kDim + t;
          // A feature with a NaN has only NaN sums, because the zeros of the identity are multiplied too.
          const bool nan = place / kDim % 4 == 1 || place / kDim % 4 == 3;
          const float expected = to_float(codes[static_cast<size_t>(place)]) * scale;
          for (const auto* y : {&together, &alone}) {
            const float actual = (*y)[static_cast<size_t>(t * kFeatures + o)];
            if (nan) {
              EXPECT_TRUE(std::isnan(actual)) << to_string(cap);
            } else if (std::isfinite(expected)) {
              EXPECT_EQ(expected, actual) << to_string(cap) << " code " << place % 256 << " scale " << scale;
            }
          }
        }
      }
    }
  }
}

// A token's result does not depend on the number of tokens.
TEST(CpuLinear, FewTokensAreOfManyBitForBit) {
  constexpr int64_t kMany = 40;
  Random random(17);
  for (const auto& [n, k, block_k] : {std::tuple{36, 2080, 128}, {36, 2080, 96}, {64, 1024, 2048}, {33, 1056, 128}, {36, 1040, 128}}) {
    for (const Weights kind : {Weights::bf16, Weights::e4m3_pow2, Weights::e4m3_f32}) {
      const Weight weight({kMany, 1, n, k}, kind, random, block_k);
      std::vector<Bf16> x = random.bf16(kMany * k);
      for (const CpuIsa cap : kCaps) {
        const auto product = [&, n = n, k = k](int64_t first, int64_t tokens, std::vector<float>& y) {
          const LinearParams p{.x = view(x, DType::bf16, {kMany, k}).slice(first, tokens),
                               .weight = &weight.w,
                               .y = view(y, DType::f32, {kMany, n}).slice(first, tokens)};
          ASSERT_TRUE(run(ops::make_linear(), "cpu/simd", p, *capped(cap)));
        };
        std::vector<float> many(static_cast<size_t>(kMany * n)), few(many.size(), -1.0f);
        product(0, kMany, many);
        for (const auto& [first, tokens] :
             {std::pair{0, 1}, {1, 2}, {3, 3}, {6, 4}, {10, 5}, {15, 6}, {21, 7}, {28, 8}, {36, 4}, {0, 9}, {9, 16}, {25, 13}}) {
          product(first, tokens, few);
          for (size_t i = static_cast<size_t>(first * n); i < static_cast<size_t>((first + tokens) * n); ++i) {
            ASSERT_EQ(many[i], few[i]) << to_string(cap) << " n " << n << " k " << k << " of " << tokens;
          }
        }
      }
    }
  }
}

// Values from the activation quantiser as the input of the grouped layer.
TEST(CpuLinear, TakesGroupedCodes) {
  constexpr int64_t kTokens = 5, kGroups = 2, kDim = 256, kOut = 64;
  Random random(12);
  const Shape shape{kTokens, kGroups, kOut, kDim};
  Weight weight(shape, Weights::e4m3_pow2, random);
  std::vector<E4m3> codes;
  for (int64_t i = 0; i < kTokens * kGroups * kDim; ++i) codes.push_back(to_e4m3(random.normal(60.0f)));
  std::vector<float> scales;
  for (int64_t i = 0; i < kTokens * kGroups * kDim / 128; ++i) scales.push_back(pow2(static_cast<int>(random.below(4)) - 8));
  const auto device = capped(CpuIsa::best);
  const auto op = ops::make_grouped_linear();
  const auto result = [&](const std::string& name, const LinearWeight& w) {
    std::vector<Bf16> y(kTokens * kGroups * kOut);
    const GroupedLinearParams p{view(codes, DType::e4m3, {kTokens, kGroups, kDim}),
                                view(scales, DType::f32, {kTokens, kGroups, kDim / 128}), &w,
                                view(y, DType::bf16, {kTokens, kGroups, kOut})};
    EXPECT_TRUE(run(op, name, p, *device)) << name;
    return y;
  };
  const auto expected = result("reference", weight.w);
  expect_near_bf16(expected, result("cpu/simd", weight.w), 0.01, "cpu/simd");
  for (const std::string name : {"cpu/amx", "cpu/onednn"}) {
    const Packed packed(weight.w, name, device);
    if (packed.data != nullptr) expect_near_bf16(expected, result(name, packed.w), 0.01, name);
  }
}

// An e4m3 weight stays as it is: oneDNN takes neither it nor the bf16 copy of one, and says why. bf16 matrices it packs.
TEST(CpuLinear, OneDnnLeavesE4m3WeightsAlone) {
  const auto device = capped(CpuIsa::best);
  Random random(21);
  for (const int64_t groups : {1, 2}) {
    const Shape shape{3, groups, 128, 256};
    const auto refusal = [&](const LinearWeight& w) -> std::string {
      const auto reason = [&](const auto& op, const auto& params) {
        for (const Candidate& c : op.candidates(params, *device)) {
          if (c.name == "cpu/onednn") return c.support.reason;
        }
        return std::string("no cpu/onednn here");
      };
      const TensorView x = TensorView::contiguous(nullptr, DType::bf16, {}, {3, groups, 256});
      const TensorView y = TensorView::contiguous(nullptr, DType::bf16, {}, {3, groups, 128});
      if (groups > 1) return reason(ops::make_grouped_linear(), GroupedLinearParams{x, {}, &w, y});
      return reason(ops::make_linear(), LinearParams{.x = Call::flat(x), .weight = &w, .y = Call::flat(y)});
    };
    const auto packed_bytes = [&](const LinearWeight& w) {
      size_t bytes = 0;
      for (const WeightPacking& p : ops::make_weight_packings()) bytes += p.name == "cpu/onednn" ? p.packed_bytes(w, *device) : 0;
      return bytes;
    };
    Weight bf16(shape, Weights::bf16, random);
    if (packed_bytes(bf16.w) == 0) GTEST_SKIP() << "no cpu/onednn here";
    EXPECT_EQ(refusal(bf16.w), "");
    bf16.w.from_e4m3 = true;
    EXPECT_THAT(refusal(bf16.w), testing::HasSubstr("bf16 copy"));
    EXPECT_EQ(packed_bytes(bf16.w), 0u);
    for (const Weights kind : {Weights::e4m3_pow2, Weights::e4m3_f32}) {
      const Weight e4m3(shape, kind, random);
      EXPECT_THAT(refusal(e4m3.w), testing::HasSubstr("would become bf16"));
      EXPECT_EQ(packed_bytes(e4m3.w), 0u);
    }
  }
}

// Memory of another size than n and k make is refused before y is written.
TEST(CpuLinear, PackedWeightsOfAnotherSizeAreRefused) {
  const auto device = capped(CpuIsa::best);
  const auto op = ops::make_linear();
  Random random(14);
  const Weight weight({1, 1, 192, 256}, Weights::bf16, random);
  const Packed packed(weight.w, "cpu/onednn", device);
  if (packed.data == nullptr) GTEST_SKIP() << "no cpu/onednn here";
  std::vector<Bf16> x(256), y(224);
  const auto run = [&](int64_t n, int64_t bytes) {
    LinearWeight w = packed.w;
    w.n = n;
    w.packed.shape[0] = bytes;
    const LinearParams p{.x = view(x, DType::bf16, {1, 256}), .weight = &w, .y = view(y, DType::bf16, {1, n})};
    const int64_t needed = op.workspace_bytes(p, *device);
    const Tensor workspace(device, DType::u8, {needed});
    op(p, {*device, {}, {workspace.view().data, needed}});
  };
  const int64_t bytes = packed.w.packed.shape[0];
  EXPECT_NO_THROW(run(192, bytes));
  y.assign(224, Bf16{7});
  for (const int64_t other : {int64_t{0}, int64_t{64}, bytes - 1, bytes + 1}) EXPECT_THROW(run(192, other), Error) << other;
  EXPECT_THROW(run(224, bytes), Error);
  for (const Bf16 v : y) EXPECT_EQ(v.bits, 7);
}

// The same of our own layout, whose header says what else its size follows from. Needs no AMX.
TEST(CpuLinear, AmxMemoryOfAnotherSizeIsRefused) {
  const auto device = capped(CpuIsa::portable);
  Random random(15);
  for (const Weights kind : {Weights::bf16, Weights::e4m3_pow2}) {
    const Weight weight({1, 1, 192, 256}, kind, random);
    const auto bytes = static_cast<int64_t>(cpu::amx::packed_bytes(weight.w));
    const Tensor memory(device, DType::u8, {bytes + 64});
    cpu::amx::pack(*device, weight.w, memory.view().ptr<std::byte>());
    const auto check = [&](int64_t n, int64_t given) {
      LinearWeight w;
      w.n = n;
      w.k = 256;
      w.packed = memory.view().slice(0, given);
      w.packing = "cpu/amx";
      cpu::amx::check_packed(w);
    };
    EXPECT_NO_THROW(check(192, bytes));
    for (const int64_t other : {int64_t{0}, int64_t{15}, int64_t{256}, bytes - 1, bytes + 1})
      EXPECT_THROW(check(192, other), Error) << other;
    EXPECT_THROW(check(256, bytes), Error);
    memory.view().ptr<cpu::amx::Header>()->steps_per_scale = 0;
    EXPECT_THROW(check(192, bytes), Error);
  }
}

TEST(CpuLinear, WorkspaceDoesNotShrinkWithMoreTokens) {
  const auto device = capped(CpuIsa::best);
  const auto op = ops::make_linear();
  Random random(13);
  const Weight weight({1, 1, 192, 256}, Weights::bf16, random);
  for (const auto& impl : op.implementations()) {
    const Packed packed(weight.w, impl.name, device);
    int64_t before = 0;
    for (const int64_t tokens : {0, 1, 2, 3, 15, 16, 17, 100, 127, 129, 500, 512, 513, 1000}) {
      LinearParams p;
      p.x = TensorView::contiguous(nullptr, DType::bf16, {}, {tokens, 256});
      p.y = TensorView::contiguous(nullptr, DType::bf16, {}, {tokens, 192});
      p.weight = packed.data != nullptr ? &packed.w : &weight.w;
      if (!impl.supports(p, *device)) continue;
      const int64_t bytes = impl.workspace_bytes(p, *device);
      EXPECT_GE(bytes, before) << impl.name << " at " << tokens;
      before = bytes;
    }
  }
}

// What benchmarks report against where the CPU has no bf16 products.
TEST(CpuLinear, TheFp32ProductIsAProduct) {
  constexpr int64_t kN = 65;
  Random random(14);
  std::vector<float> a(kN * kN), b(kN * kN), c(kN * kN, NAN);
  for (size_t i = 0; i < a.size(); ++i) a[i] = random.normal(), b[i] = random.normal();
  EXPECT_FALSE(capped(CpuIsa::portable)->probe_product(kN, a.data(), b.data(), c.data(), {}));
  EXPECT_TRUE(std::isnan(c[0]));
  if (!capped(CpuIsa::best)->probe_product(kN, a.data(), b.data(), c.data(), {})) GTEST_SKIP() << "built without oneDNN";
  for (int64_t i = 0; i < kN; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < kN; ++k) sum += double{a[i * kN + k]} * b[j * kN + k];
      ASSERT_NEAR(c[i * kN + j], sum, 1e-4) << i << ", " << j;
    }
  }
}

}  // namespace
}  // namespace strata::cpu_test
