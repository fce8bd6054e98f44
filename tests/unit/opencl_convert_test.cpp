// The conversions of OpenCL kernels that have no branches, against src/formats.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backends/opencl/device/convert.h"
#include "formats/bf16.h"
#include "formats/quantize.h"
#include "formats_nearest.h"

namespace strata::opencl {
namespace {

using test::bits_to_float;

void expect_same_codes(float v) {
  ASSERT_EQ(bf16_bits(v), to_bf16(v).bits) << v << " " << float_bits(v);
  ASSERT_EQ(float_bits(nearest_bf16(v)), float_bits(round_to_bf16(v))) << v << " " << float_bits(v);
  ASSERT_EQ(e4m3_bits(v), to_e4m3(v).bits) << v << " " << float_bits(v);
  ASSERT_EQ(e2m1_bits(v), to_e2m1(v)) << v << " " << float_bits(v);
}

// Exponents of `top`, which is not negative.
void expect_same_exponents(float top) {
  ASSERT_EQ(block_exponent(top), e4m3_exponent(top)) << top << " " << float_bits(top);
  if (top < 6 * 0x1p-126f) return;
  const int exponent = ceil_log2(top / 6.0f);
  ASSERT_EQ(mxfp4_exponent(top), exponent > 127 ? 127 : exponent) << top << " " << float_bits(top);
}

TEST(OpenclConvert, EveryCodeHasItsValue) {
  for (uint32_t code = 0; code < 256; ++code) {
    EXPECT_EQ(float_bits(e4m3_value(code)), float_bits(to_float(E4m3{static_cast<uint8_t>(code)}))) << code;
    EXPECT_EQ(float_bits(e8m0_value(code)), float_bits(to_float(E8m0{static_cast<uint8_t>(code)}))) << code;
    EXPECT_EQ(float_bits(e2m1_value(code)), float_bits(e2m1_to_float(static_cast<uint8_t>(code)))) << code;
  }
}

// Each is in the middle of 2^16 floats, and the first of them, with its neighbours.
TEST(OpenclConvert, EveryBf16ValueAndMidpointHasItsCode) {
  for (uint32_t code = 0; code < 1u << 16; ++code) {
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) expect_same_codes(bits_to_float(code << 16 | low));
  }
}

TEST(OpenclConvert, EveryBoundaryHasItsCode) {
  const auto expect_all = [](int codes, auto value) {
    std::vector<double> magnitudes;
    for (int code = 0; code < codes; ++code) magnitudes.push_back(double{value(static_cast<uint8_t>(code))});
    for (const float v : test::rounding_cases(magnitudes)) expect_same_codes(v);
  };
  expect_all(0x7F, [](uint8_t code) { return to_float(E4m3{code}); });
  expect_all(8, [](uint8_t code) { return e2m1_to_float(code); });
  for (const float v : {448.0f, 464.0f, 480.0f, 6.0f, 7.0f, 8.0f, 0x1p-149f, 0x1p-126f, INFINITY}) {
    for (const float x : {v, std::nextafter(v, 0.0f), std::nextafter(v, INFINITY)}) expect_same_codes(x), expect_same_codes(-x);
  }
}

TEST(OpenclConvert, FloatsAllOverHaveTheirCodes) {
  constexpr uint32_t kStride = 1021;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += kStride) {
    const float v = bits_to_float(static_cast<uint32_t>(bits));
    const bool same = bf16_bits(v) == to_bf16(v).bits && e4m3_bits(v) == to_e4m3(v).bits && e2m1_bits(v) == to_e2m1(v);
    if (!same) expect_same_codes(v);
  }
}

TEST(OpenclConvert, BlocksHaveTheirExponents) {
  for (uint32_t exponent = 1; exponent < 255; ++exponent) {
    // The mantissas of 448 and of 6, of powers of two, and their neighbours.
    for (const uint32_t mantissa : {0u, 1u, 0x3FFFFFu, 0x400000u, 0x400001u, 0x5FFFFFu, 0x600000u, 0x600001u, 0x7FFFFFu}) {
      expect_same_exponents(bits_to_float(exponent << 23 | mantissa));
    }
  }
  for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += 3) {
    const float top = bits_to_float(127u << 23 | mantissa);
    if (block_exponent(top) != e4m3_exponent(top) || mxfp4_exponent(top) != ceil_log2(top / 6.0f)) expect_same_exponents(top);
  }
  constexpr uint32_t kStride = 509;
  for (uint32_t bits = 0x00800000; bits < 0x7F800000; bits += kStride) expect_same_exponents(bits_to_float(bits));
  for (uint32_t bits = 0; bits < 1u << 23; bits += bits < 4096 ? 1 : 61) {
    if (block_exponent(bits_to_float(bits)) != e4m3_exponent(bits_to_float(bits))) expect_same_exponents(bits_to_float(bits));
  }
  expect_same_exponents(INFINITY);
  expect_same_exponents(bits_to_float(0x7FC00000));
  expect_same_exponents(kActivationAmaxFloor);
  expect_same_exponents(kKvAmaxFloor);
}

}  // namespace
}  // namespace strata::opencl
