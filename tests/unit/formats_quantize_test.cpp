// The block quantisers: worked values, what defines their scales, and every quantised value against a search for the nearest.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <random>

#include "formats/quantize.h"
#include "formats_nearest.h"

namespace strata {
namespace {

std::vector<float> random_block(size_t n, float sigma, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0.0f, sigma);
  std::vector<float> block(n);
  for (float& v : block) v = round_to_bf16(distribution(generator));
  return block;
}

double absmax(const std::vector<float>& x) {
  double result = 0.0;
  for (float v : x) result = std::max(result, std::fabs(double{v}));
  return result;
}

// The quantised magnitude is nearest to x / scale: no other value of the format is nearer.
void expect_nearest_codes(const std::vector<float>& x, const std::vector<E4m3>& codes, double scale) {
  for (size_t i = 0; i < x.size(); ++i) {
    const double target = std::fmin(std::fmax(x[i] / scale, -448.0), 448.0);
    const double error = std::fabs(to_float(codes[i]) - target);
    for (uint32_t c = 0; c < 256; ++c) {
      if ((c & 0x7F) == 0x7F) continue;
      ASSERT_LE(error, std::fabs(to_float(E4m3{static_cast<uint8_t>(c)}) - target)) << "element " << i << " = " << x[i];
    }
    ASSERT_EQ(codes[i].bits >> 7, std::signbit(x[i]) ? 1 : 0);
  }
}

TEST(QuantizeKvBlock, ScaleIsTheSmallestPowerOfTwoThatHolds) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::vector<float> x = random_block(kKvBlock, std::ldexp(1.0f, static_cast<int>(seed % 20) - 10), seed);
    std::vector<E4m3> codes(kKvBlock);
    const E8m0 scale = quantize_kv_block(x.data(), codes.data());
    const double a = std::max(absmax(x), 1e-4), s = to_float(scale);
    EXPECT_LE(a, 448 * s);
    EXPECT_GT(a, 448 * s / 2);
    expect_nearest_codes(x, codes, s);
  }
}

TEST(QuantizeKvBlock, WorkedValues) {
  std::vector<float> x(kKvBlock, 0.0f);
  std::vector<E4m3> codes(kKvBlock);
  const auto byte = [&](float a) {
    x[17] = a;
    return int{quantize_kv_block(x.data(), codes.data()).bits};
  };
  EXPECT_EQ(byte(0.0f), 105) << "the floor of the absmax, all zero";
  for (E4m3 c : codes) EXPECT_EQ(c.bits, 0);
  EXPECT_EQ(byte(1e-4f), 105);
  EXPECT_EQ(byte(0.1f), 115);
  EXPECT_EQ(byte(1.75f), 119);
  EXPECT_EQ(byte(1.7578125f), 120);
  EXPECT_EQ(byte(3.5f), 120);
  EXPECT_EQ(byte(-448.0f), 127);
  EXPECT_EQ(codes[17].bits, 0xFE);
  EXPECT_EQ(byte(1.0f), 119);
  EXPECT_EQ(codes[17].bits, 0x78);
}

TEST(QuantizeKvBlock, WhatIsNotFiniteStaysVisible) {
  std::vector<float> x = random_block(kKvBlock, 1.0f, 3);
  std::vector<E4m3> codes(kKvBlock);
  const E8m0 clean = quantize_kv_block(x.data(), codes.data());
  x[5] = -NAN;
  x[6] = 0.0f;
  EXPECT_LE(quantize_kv_block(x.data(), codes.data()).bits, clean.bits);
  EXPECT_EQ(codes[5].bits & 0x7F, 0x7F);
  x[6] = INFINITY;
  EXPECT_EQ(quantize_kv_block(x.data(), codes.data()).bits, 255) << "the scale is NaN";
}

TEST(QuantizeActivation, PowerOfTwoAndFp32Scales) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    const std::vector<float> x = random_block(kActivationBlock, std::ldexp(1.0f, static_cast<int>(seed % 30) - 20), seed);
    std::vector<E4m3> codes(kActivationBlock);
    const double a = std::max(absmax(x), 1e-10);
    const double s = quantize_activation(x.data(), kActivationBlock, true, codes.data());
    EXPECT_EQ(std::exp2(std::round(std::log2(s))), s);
    EXPECT_LE(a, 448 * s);
    EXPECT_GT(a, 448 * s / 2);
    expect_nearest_codes(x, codes, s);

    const float plain = quantize_activation(x.data(), kActivationBlock, false, codes.data());
    EXPECT_EQ(plain, static_cast<float>(a) / 448.0f);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(codes[i].bits, to_e4m3(x[i] / plain).bits);
  }
  std::vector<float> zero(kActivationBlock, 0.0f);
  std::vector<E4m3> codes(kActivationBlock);
  EXPECT_EQ(quantize_activation(zero.data(), kActivationBlock, false, codes.data()), 1e-10f / 448.0f);
  EXPECT_EQ(quantize_activation(zero.data(), kActivationBlock, true, codes.data()), pow2(ceil_log2(1e-10f / 448.0f)));
}

TEST(QuantizeActivation, Bf16AndFp32SourcesGiveTheSame) {
  const std::vector<float> x = random_block(kActivationBlock, 1.0f, 5);
  std::vector<Bf16> b;
  for (float v : x) b.push_back(to_bf16(v));
  std::vector<E4m3> from_float(kActivationBlock), from_bf16(kActivationBlock);
  EXPECT_EQ(quantize_activation(x.data(), kActivationBlock, true, from_float.data()),
            quantize_activation(b.data(), kActivationBlock, true, from_bf16.data()));
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(from_float[i].bits, from_bf16[i].bits);
}

TEST(QuantizeIndexerFp8, OnePowerOfTwoForTheWholeVector) {
  std::vector<float> x = random_block(128, 1.0f, 6);
  x[100] = 448.0f;
  std::vector<E4m3> codes(128);
  EXPECT_EQ(quantize_indexer_fp8(x.data(), 128, kKvAmaxFloor, codes.data()), 1.0f);
  expect_nearest_codes(x, codes, 1.0);
  x[100] = std::nextafter(448.0f, 500.0f);
  EXPECT_EQ(quantize_indexer_fp8(x.data(), 128, kKvAmaxFloor, codes.data()), 2.0f);
}

TEST(QuantizeMlaTile, Fp32ScalesOrPowersOfTwo) {
  std::vector<float> x = random_block(128, 1.0f, 7);
  x[3] = 100.0f;
  std::vector<E4m3> codes(128);
  EXPECT_EQ(quantize_mla_tile(x.data(), false, codes.data()), 100.0f / 448.0f);
  EXPECT_EQ(codes[3].bits, 0x7E);
  EXPECT_EQ(quantize_mla_tile(x.data(), true, codes.data()), 0.25f);
  std::fill(x.begin(), x.end(), 0.0f);
  EXPECT_EQ(quantize_mla_tile(x.data(), false, codes.data()), FLT_MIN) << "never zero: the codes are quotients";
  EXPECT_EQ(codes[3].bits, 0);
}

TEST(QuantizeMxfp4, WorkedValues) {
  std::vector<float> x(kMxfp4Block, 0.0f);
  x[0] = 3.0f;
  x[1] = -0.2f;
  uint8_t packed[kMxfp4Block / 2];
  EXPECT_EQ(quantize_mxfp4_block(x.data(), packed).bits, 126);
  EXPECT_EQ(packed[0], 0x97);
  EXPECT_EQ(packed[1], 0x00);
  std::fill(x.begin(), x.end(), 0.0f);
  EXPECT_EQ(quantize_mxfp4_block(x.data(), packed).bits, 1) << "the floor 6 * 2^-126";
}

TEST(QuantizeMxfp4, CodesAreNearest) {
  const std::vector<double> values = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::vector<float> x = random_block(kMxfp4Block, std::ldexp(1.0f, static_cast<int>(seed) - 30), seed);
    uint8_t packed[kMxfp4Block / 2];
    const double s = to_float(quantize_mxfp4_block(x.data(), packed)), a = absmax(x);
    EXPECT_LE(a, 6 * s);
    EXPECT_GT(a, 3 * s);
    for (int i = 0; i < kMxfp4Block; ++i) {
      const uint32_t code = packed[i / 2] >> (i % 2 * 4) & 15u;
      const float v = x[static_cast<size_t>(i)];
      EXPECT_EQ(code, test::nearest_even_code(std::fabs(v) / s, values) + (std::signbit(v) ? 8u : 0u)) << v;
    }
  }
}

// Byte 254 and 1: the ends of what a block of finite bf16 values can give.
TEST(QuantizeMxfp4, ExtremesOfBf16) {
  std::vector<float> x(kMxfp4Block, to_float(Bf16{0x7F7F}));
  uint8_t packed[kMxfp4Block / 2];
  const E8m0 scale = quantize_mxfp4_block(x.data(), packed);
  EXPECT_EQ(scale.bits, 126 + 127);
  EXPECT_EQ(packed[0], 0x66) << "just below 4 * 2^126";
  std::fill(x.begin(), x.end(), 0x1p-126f);
  EXPECT_EQ(quantize_mxfp4_block(x.data(), packed).bits, 1);
  EXPECT_EQ(packed[0], 0x22);
}

}  // namespace
}  // namespace strata
