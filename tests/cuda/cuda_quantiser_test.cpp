// The activations' quantiser of the linear ops writes the bytes of strata::quantize_activation, which every backend shares.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "backends/cuda/linear/operands.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "cuda/cuda_fixture.h"
#include "formats/quantize.h"

namespace strata {
namespace {

struct Quantised {
  std::vector<uint8_t> codes;  // [T, K]
  std::vector<float> scales;   // [T, blocks]
};

// Rows of k values, `stride` apart.
struct Rows {
  int64_t tokens, k, stride;
  std::vector<Bf16> x;
};

Quantised on_host(const Rows& rows, bool ue8m0) {
  Quantised q{std::vector<uint8_t>(static_cast<size_t>(rows.tokens * rows.k)), {}};
  for (int64_t t = 0; t < rows.tokens; ++t) {
    for (int64_t first = 0; first < rows.k; first += kActivationBlock) {
      auto* codes = reinterpret_cast<E4m3*>(q.codes.data() + t * rows.k + first);
      q.scales.push_back(
          quantize_activation(rows.x.data() + t * rows.stride + first, std::min<int64_t>(kActivationBlock, rows.k - first), ue8m0, codes));
    }
  }
  return q;
}

class CudaQuantiser : public test::CudaTest, public testing::WithParamInterface<bool> {
 protected:
  static ActivationFormat format() { return GetParam() ? ActivationFormat::fp8_ue8m0 : ActivationFormat::fp8_f32; }

  // The rows begin `offset` elements after an aligned address.
  Quantised on_device(const Rows& rows, int64_t offset) {
    const int64_t blocks = activation_blocks(rows.k), elements = std::ssize(rows.x);
    const Tensor x(device_, DType::bf16, {elements + offset}), codes(device_, DType::e4m3, {rows.tokens, rows.k}),
        scales(device_, DType::f32, {rows.tokens, blocks});
    Bf16* const data = x.view().ptr<Bf16>() + offset;
    device_->copy_from_host(data, rows.x.data(), rows.x.size() * sizeof(Bf16), {});
    TensorView view = TensorView::contiguous(data, DType::bf16, device_->id(), {rows.tokens, rows.k});
    view.stride[0] = rows.stride;
    cuda::quantize_rows(view, format(), {codes.view().ptr<E4m3>(), scales.view().ptr<float>(), blocks, 1}, false, cuda::native(Stream{}));
    Quantised q{bytes_at(codes.view().data, codes.allocated_bytes()), std::vector<float>(static_cast<size_t>(rows.tokens * blocks))};
    device_->copy_to_host(q.scales.data(), scales.view().data, scales.allocated_bytes(), {});
    device_->synchronize({});
    return q;
  }

  void expect_equal(const Rows& rows, int64_t offset = 0) {
    const Quantised want = on_host(rows, GetParam()), got = on_device(rows, offset);
    EXPECT_EQ(std::memcmp(want.scales.data(), got.scales.data(), want.scales.size() * sizeof(float)), 0);
    ASSERT_EQ(want.codes.size(), got.codes.size());
    int64_t wrong = 0;
    for (size_t i = 0; i < want.codes.size(); ++i) {
      if (want.codes[i] == got.codes[i] || wrong++ > 0) continue;
      const auto t = static_cast<int64_t>(i) / rows.k, c = static_cast<int64_t>(i) % rows.k;
      ADD_FAILURE() << "token " << t << " channel " << c << ": " << to_float(rows.x[static_cast<size_t>(t * rows.stride + c)]) << " is "
                    << int{got.codes[i]} << ", must be " << int{want.codes[i]};
    }
    EXPECT_EQ(wrong, 0);
  }
};

// Every finite value and NaN, with every sign, under scales of every size.
TEST_P(CudaQuantiser, EveryValue) {
  constexpr int64_t kTokens = 1024;
  Rows rows{kTokens, kActivationBlock, kActivationBlock, std::vector<Bf16>(kTokens * kActivationBlock)};
  std::mt19937 rng(1);
  std::vector<uint16_t> patterns;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7FFF) != 0x7F80) patterns.push_back(static_cast<uint16_t>(bits));
  }
  for (const bool sorted : {true, false}) {
    // In order, the values of a row have one size; shuffled, the largest of a row is near the largest there is.
    if (!sorted) std::shuffle(patterns.begin(), patterns.end(), rng);
    for (size_t i = 0; i < rows.x.size(); ++i) rows.x[i] = {patterns[(i / 2 + (i % 2) * patterns.size() / 2) % patterns.size()]};
    expect_equal(rows);
  }
}

TEST_P(CudaQuantiser, ActivationsOfAnyShape) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> size(-30.0f, 20.0f);
  for (const auto& [tokens, k, padding, offset] : {std::array<int64_t, 4>{1, 128, 0, 0},
                                                   {3, 7168, 0, 0},
                                                   {17, 1536, 8, 8},
                                                   {33, 200, 1, 1},
                                                   {5, 96, 3, 7},
                                                   {300, 384, 5, 4},
                                                   {2, 1, 0, 0}}) {
    SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(k));
    Rows rows{tokens, k, k + padding, std::vector<Bf16>(static_cast<size_t>(tokens * (k + padding)))};
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < k; ++c) {
        const float outlier = rng() % 64 == 0 ? 30.0f : 1.0f;
        rows.x[static_cast<size_t>(t * rows.stride + c)] = to_bf16(normal(rng) * outlier);
      }
      // Blocks whose largest value is next to where the scale changes; and of nothing but zeros.
      const float power = std::exp2(std::floor(size(rng)));
      rows.x[static_cast<size_t>(t * rows.stride)] = to_bf16(448.0f * power *
                                                             (t % 3 == 0   ? 1.0f
                                                              : t % 3 == 1 ? 1.0f - 0x1p-7f
                                                                           : 1.0f + 0x1p-7f));
      if (t % 5 == 4) std::fill_n(rows.x.begin() + t * rows.stride, std::min<int64_t>(k, kActivationBlock), Bf16{0});
    }
    expect_equal(rows, offset);
  }
}

INSTANTIATE_TEST_SUITE_P(Scales, CudaQuantiser, testing::Bool(), [](const auto& p) { return p.param ? "powers_of_two" : "any"; });

}  // namespace
}  // namespace strata
