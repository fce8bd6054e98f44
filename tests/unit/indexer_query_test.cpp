#include <bit>
#include <cmath>

#include "formats/e2m1.h"
#include "formats/quantize.h"
#include "ops/factories.h"
#include "unit/op_test.h"

namespace strata::test {
namespace {

const Op<IndexerQueryParams> kOp = ops::make_indexer_query();

// The params of bf16 output without rotation.
IndexerQueryParams plain(TensorView q, TensorView weights, TensorView q_out, TensorView weights_out) {
  return {.q = q, .weights = weights, .softmax_scale = 0.5f, .head_scale = 0.25f, .q_out = q_out, .weights_out = weights_out};
}

std::vector<float> floats(const Array<Bf16>& a) {
  std::vector<float> result;
  for (Bf16 v : a.values()) result.push_back(to_float(v));
  return result;
}

TEST(IndexerQuery, UnquantisedWithoutRotation) {
  Array<Bf16> q({1, 2, 4}, bf16_values({1, -2, 3, 4, 0.5, 0, -1, 7}));
  Array<Bf16> w({1, 2}, bf16_values({3, -1}));
  Array<Bf16> out({1, 2, 4});
  Array<float> w_out({1, 2});
  run(kOp, plain(q, w, out, w_out));
  EXPECT_EQ(out.bytes(), q.bytes());
  EXPECT_EQ(w_out.values(), (std::vector<float>{0.375f, -0.125f}));
}

TEST(IndexerQuery, PairingAndLanes) {
  // Row 1 of the table turns by a quarter: (a, b) -> (-b, a). Row 0 does nothing.
  Array<float> table({2, 4}, {1, 1, 0, 0, 0, 0, 1, 1});
  Array<Bf16> q({2, 1, 6}, bf16_values({1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}));
  Array<float> w({2, 1}, {1, 1});
  Array<int64_t> positions({2}, {1, 0});
  Array<Bf16> out({2, 1, 6});
  Array<float> w_out({2, 1});
  IndexerQueryParams p = plain(q, w, out, w_out);
  p.positions = positions;
  p.cos_sin = table;
  run(kOp, p);
  EXPECT_EQ(floats(out), (std::vector<float>{1, 2, -4, 3, -6, 5, 1, 2, 3, 4, 5, 6}));
  p.rope_slice = RopeSlice::first;
  run(kOp, p);
  EXPECT_EQ(floats(out), (std::vector<float>{-2, 1, -4, 3, 5, 6, 1, 2, 3, 4, 5, 6}));
  p.pairing = RopePairing::half_split;
  run(kOp, p);
  EXPECT_EQ(floats(out), (std::vector<float>{-3, -4, 1, 2, 5, 6, 1, 2, 3, 4, 5, 6}));
  p.rope_slice = RopeSlice::last;
  run(kOp, p);
  EXPECT_EQ(floats(out), (std::vector<float>{1, 2, -5, -6, 3, 4, 1, 2, 3, 4, 5, 6}));
}

TEST(IndexerQuery, Fp8FoldsTheScale) {
  Array<Bf16> q({1, 3, 128});
  q.fill(to_bf16(0.0f));
  q[0] = to_bf16(1.0f);
  q[5] = to_bf16(-0.5f);
  q[128 + 127] = to_bf16(448.0f);  // head 1; head 2 is zero
  Array<Bf16> w({1, 3}, bf16_values({3, -2, 1}));
  Array<E4m3> out({1, 3, 128});
  Array<float> w_out({1, 3});
  IndexerQueryParams p = plain(q, w, out, w_out);
  p.softmax_scale = 1.0f / std::sqrt(128.0f);
  p.head_scale = 0.125f;
  run(kOp, p);
  EXPECT_EQ(out[0].bits, 0x78);  // section 19: scale 2^-8, e4m3 of 256
  EXPECT_EQ(out[5].bits, 0xF0);  // -128
  EXPECT_EQ(out[1].bits, 0x00);
  EXPECT_EQ(out[128 + 127].bits, 0x7E);
  EXPECT_EQ(out[256].bits, 0x00);
  EXPECT_EQ(w_out[0], ((3.0f * 0x1p-8f) * p.softmax_scale) * 0.125f);
  EXPECT_EQ(w_out[1], ((-2.0f * 1.0f) * p.softmax_scale) * 0.125f);
  EXPECT_EQ(w_out[2], ((1.0f * 0x1p-22f) * p.softmax_scale) * 0.125f);  // floor 1e-4
  p.amax_floor = 1e-10f;
  run(kOp, p);
  EXPECT_EQ(w_out[2], ((1.0f * to_float(to_e8m0(ceil_log2(1e-10f / 448)))) * p.softmax_scale) * 0.125f);
}

TEST(IndexerQuery, TheOrderOfFoldingIsFp32) {
  // A product of three factors depends on its order in the last bit; this weight shows it.
  const float softmax_scale = 1.0f / std::sqrt(128.0f), head_scale = 1.0f / std::sqrt(3.0f);
  Array<Bf16> q({1, 1, 32}, std::vector<Bf16>(32, to_bf16(1.0f)));
  Array<Bf16> out({1, 1, 32});
  Array<float> w({1, 1}), w_out({1, 1});
  bool differs = false;
  for (int i = 1; i < 100; ++i) {
    w[0] = static_cast<float>(i) * 0.37f;
    IndexerQueryParams p = plain(q, w, out, w_out);
    p.softmax_scale = softmax_scale;
    p.head_scale = head_scale;
    run(kOp, p);
    EXPECT_EQ(w_out[0], (w[0] * softmax_scale) * head_scale);
    differs = differs || w_out[0] != w[0] * (softmax_scale * head_scale);
  }
  EXPECT_TRUE(differs);
}

TEST(IndexerQuery, Mxfp4KeepsTheScales) {
  Array<Bf16> q({1, 1, 64});
  q.fill(to_bf16(0.0f));
  q[0] = to_bf16(3.0f);
  q[1] = to_bf16(-0.2f);
  q[32] = to_bf16(6.0f);
  Array<Bf16> w({1, 1}, bf16_values({2}));
  Array<uint8_t> out({1, 1, 32});
  Array<E8m0> scale({1, 1, 2});
  Array<float> w_out({1, 1});
  IndexerQueryParams p = plain(q, w, out, w_out);
  p.q_scale_out = scale;
  run(kOp, p);
  EXPECT_EQ(out[0], 0x97);  // section 19
  EXPECT_EQ(scale[0].bits, 126);
  EXPECT_EQ(out[16], 0x07);
  EXPECT_EQ(scale[1].bits, 127);
  EXPECT_EQ(w_out[0], 0.25f);  // without the scale of q
}

TEST(IndexerQuery, HadamardOfRoundedValues) {
  constexpr int64_t kDim = 128;
  Array<Bf16> q({2, 3, kDim}, random_bf16(2 * 3 * kDim, 1.0f, 3));
  Array<float> table({3, 64});
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < 32; ++i) {
      table[r * 64 + i] = std::cos(0.1f * static_cast<float>(r * (i + 1)));
      table[r * 64 + 32 + i] = std::sin(0.1f * static_cast<float>(r * (i + 1)));
    }
  }
  Array<float> w({2, 3}, std::vector<float>(6, 1.0f));
  Array<int64_t> positions({2}, {1, 2});
  Array<Bf16> rotated({2, 3, kDim}), out({2, 3, kDim});
  Array<float> w_out({2, 3});
  IndexerQueryParams p = plain(q, w, rotated, w_out);
  p.positions = positions;
  p.cos_sin = table;
  run(kOp, p);
  p.q_out = out;
  p.hadamard = true;
  run(kOp, p);
  for (int64_t head = 0; head < 6; ++head) {
    for (int64_t i = 0; i < kDim; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < kDim; ++j) {
        const bool negative = std::popcount(static_cast<uint64_t>(i & j)) % 2 != 0;
        sum += (negative ? -1.0 : 1.0) * to_float(rotated[head * kDim + j]);
      }
      const float expected = static_cast<float>(sum / std::sqrt(static_cast<double>(kDim)));
      EXPECT_NEAR(to_float(out[head * kDim + i]), expected, std::fabs(expected) / 256 + 1e-6) << head << ", " << i;
    }
  }
  // The quantised forms are those of the bf16 result.
  Array<E4m3> codes({2, 3, kDim});
  p.q_out = codes;
  run(kOp, p);
  for (int64_t head = 0; head < 6; ++head) {
    std::vector<E4m3> expected(kDim);
    const float scale = quantize_indexer_fp8(&out[head * kDim], kDim, p.amax_floor, expected.data());
    EXPECT_EQ(std::memcmp(expected.data(), &codes[head * kDim], kDim), 0);
    EXPECT_EQ(w_out[head], (scale * p.softmax_scale) * p.head_scale);
  }
}

TEST(IndexerQuery, StridedInputsAndNoTokens) {
  Array<Bf16> wide({2, 3, 8}, random_bf16(48, 1.0f, 5));
  Array<Bf16> weights({2, 5}, random_bf16(10, 1.0f, 6));
  Array<Bf16> out({2, 3, 4});
  Array<float> w_out({2, 3});
  run(kOp, plain(wide.view().columns(2, 4), weights.view().columns(1, 3), out, w_out));
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t d = 0; d < 4; ++d) EXPECT_EQ(out[(t * 3 + h) * 4 + d].bits, wide[(t * 3 + h) * 8 + 2 + d].bits);
      EXPECT_EQ(w_out[t * 3 + h], to_float(weights[t * 5 + 1 + h]) * 0.125f);
    }
  }
  Array<Bf16> none({0, 3, 4}), none_weights({0, 3});
  Array<float> none_out({0, 3});
  run(kOp, plain(none, none_weights, none, none_out));
}

TEST(IndexerQuery, RefusesWhatContradictsTheContract) {
  Array<Bf16> q({2, 1, 128}, random_bf16(256, 1.0f, 1));
  Array<Bf16> w({2, 1}, bf16_values({1, 1}));
  Array<float> table({4, 64}, std::vector<float>(256, 0.5f));
  Array<int64_t> positions({2}, {3, 4});
  Array<uint8_t> out({2, 1, 64});
  Array<E8m0> scale({2, 1, 4});
  Array<float> w_out({2, 1});
  IndexerQueryParams good = plain(q, w, out, w_out);
  good.positions = positions;
  good.cos_sin = table;
  good.q_scale_out = scale;
  const auto refuse = [&](const IndexerQueryParams& p, std::initializer_list<const char*> words) {
    expect_refused(kOp, p, words, out, scale, w_out);
  };
  refuse(good, {"positions[1]", "[0, 4)", "is 4"});
  positions[1] = -1;
  refuse(good, {"positions[1]", "is -1"});
  positions[1] = 0;

  IndexerQueryParams p = good;
  p.positions = {};
  refuse(p, {"positions", "absent"});
  p = good;
  p.positions = p.positions.reshape({2, 1});
  refuse(p, {"positions must have shape [2]", "[2, 1]"});
  p = good;
  p.q = p.q.reshape({2, 128});
  refuse(p, {"q must have shape [any, any, any]", "[2, 128]"});
  p = good;
  p.cos_sin = p.cos_sin.reshape({256});
  refuse(p, {"cos_sin must have shape [any, any]", "[256]"});
  p = good;
  p.softmax_scale = 0;
  refuse(p, {"softmax_scale", "positive", "is 0"});
  p = good;
  p.head_scale = kInf;
  refuse(p, {"head_scale", "finite", "is inf"});
  p = good;
  p.amax_floor = -1;
  refuse(p, {"amax_floor", "positive", "is -1"});
  p = good;
  p.q_scale_out = {};
  refuse(p, {"q_scale_out", "e8m0", "absent"});
  p = good;
  p.q_scale_out.shape[2] = 2;
  refuse(p, {"q_scale_out", "[2, 1, 4]", "e8m0[2, 1, 2]"});
  p = good;
  p.q_out.shape[2] = 128;
  refuse(p, {"q_out", "[2, 1, 64]", "u8[2, 1, 128]"});
  p = good;
  p.q_out.stride[0] = 65;
  refuse(p, {"q_out", "contiguous", "strides [65, 64, 1]"});
  p = good;
  p.q_out = TensorView::contiguous(out.values().data(), DType::e4m3, {}, {2, 1, 128});
  refuse(p, {"q_scale_out", "absent", "e8m0[2, 1, 4]"});
  p = good;
  p.cos_sin.shape[1] = 63;
  refuse(p, {"cos_sin", "even", "has 63"});
  p = good;
  p.cos_sin.shape[1] = 130;
  refuse(p, {"cos_sin", "[2, 128]", "has 130"});
  p = good;
  p.q.shape[2] = 96;
  p.q_out.shape[2] = 48;
  p.q_scale_out.shape[2] = 3;
  p.hadamard = true;
  refuse(p, {"power of two", "has 96"});
  p = good;
  p.q.shape[2] = 70;
  refuse(p, {"q must have a multiple of 32", "has 70"});
  p.q.shape[2] = 513;
  refuse(p, {"q must have 1 to 512", "has 513"});
  p = good;
  p.weights.dtype = DType::f16;
  refuse(p, {"weights", "bf16 or f32", "f16[2, 1]"});
  p = good;
  p.weights_out.dtype = DType::bf16;
  refuse(p, {"weights_out", "f32", "bf16[2, 1]"});
}

}  // namespace
}  // namespace strata::test
