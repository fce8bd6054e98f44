// Every bit pattern of every number format, and every rounding decision of its encoder against a search for the nearest value.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/fp16.h"
#include "formats/ue8m0.h"
#include "formats_nearest.h"

namespace strata {
namespace {

using test::bits_to_float;
using test::nearest_even_code;
using test::rounding_cases;

// Magnitudes of a format with `mantissa_bits` and exponent bias `bias`, bits 0..last.
std::vector<double> magnitudes(int mantissa_bits, int bias, int last) {
  std::vector<double> result;
  for (int code = 0; code <= last; ++code) {
    const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    result.push_back(exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                   : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits));
  }
  return result;
}

const std::vector<double> kE4m3Magnitudes = magnitudes(3, 7, 0x7E);
const std::vector<double> kE2m1Magnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// All bf16 and all fp16 numbers as fp32.
template <class F>
void for_all_16_bit_values(F&& f) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    f(to_float(Bf16{static_cast<uint16_t>(bits)}));
    f(to_float(Fp16{static_cast<uint16_t>(bits)}));
  }
}

TEST(E4m3, EveryCodeDecodesToItsDefinition) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float v = to_float(E4m3{static_cast<uint8_t>(code)});
    EXPECT_EQ(std::signbit(v), code >= 128) << code;
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(v)) << code;
      EXPECT_EQ(to_e4m3(v).bits, code);
    } else {
      EXPECT_EQ(std::fabs(v), kE4m3Magnitudes[code & 0x7F]) << code;
      EXPECT_EQ(to_e4m3(v).bits, code);
      EXPECT_EQ(kE4m3Values[code], v);
    }
  }
}

void expect_nearest_e4m3(float v) {
  const uint32_t sign = std::signbit(v) ? 0x80 : 0;
  const uint32_t expected = std::isnan(v) ? 0x7F : nearest_even_code(std::fabs(double{v}), kE4m3Magnitudes);
  ASSERT_EQ(uint32_t{to_e4m3(v).bits}, sign | expected) << v;
}

TEST(E4m3, EncodesToTheNearestEven) {
  for_all_16_bit_values(expect_nearest_e4m3);
  for (float v : rounding_cases(kE4m3Magnitudes)) expect_nearest_e4m3(v);
  std::mt19937 generator(1);
  for (int i = 0; i < 200000; ++i) expect_nearest_e4m3(bits_to_float(generator()));
}

TEST(E4m3, SaturatesAndKeepsNaN) {
  EXPECT_EQ(to_e4m3(INFINITY).bits, 0x7E);
  EXPECT_EQ(to_e4m3(-INFINITY).bits, 0xFE);
  EXPECT_EQ(to_e4m3(std::nextafter(464.0f, 500.0f)).bits, 0x7E) << "where rounding alone would give the NaN code";
  EXPECT_EQ(to_e4m3(bits_to_float(0x7F800001)).bits, 0x7F);
  EXPECT_EQ(to_e4m3(bits_to_float(0xFFC00000)).bits, 0xFF);
}

void expect_nearest_e2m1(float v) {
  if (std::isnan(v)) {
    ASSERT_EQ(to_e2m1(v) & 7, 7);
    return;
  }
  ASSERT_EQ(uint32_t{to_e2m1(v)}, (std::signbit(v) ? 8u : 0u) | nearest_even_code(std::fabs(double{v}), kE2m1Magnitudes)) << v;
}

TEST(E2m1, EveryCodeAndTheNearestEven) {
  for (uint32_t code = 0; code < 16; ++code) {
    const float v = e2m1_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(std::fabs(v), kE2m1Magnitudes[code & 7]);
    EXPECT_EQ(std::signbit(v), code >= 8);
    EXPECT_EQ(to_e2m1(v), code);
  }
  for_all_16_bit_values(expect_nearest_e2m1);
  for (float v : rounding_cases(kE2m1Magnitudes)) expect_nearest_e2m1(v);
}

TEST(E2m1, PackedPairsAreLittleEndian) {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint8_t packed = static_cast<uint8_t>(byte);
    EXPECT_EQ(e2m1_element(&packed, 0), e2m1_to_float(packed & 15));
    EXPECT_EQ(e2m1_element(&packed, 1), e2m1_to_float(packed >> 4));
    EXPECT_EQ(pack_e2m1(packed & 15, packed >> 4), packed);
  }
}

TEST(Fp16, EveryCodeDecodesToItsDefinitionAndBack) {
  const std::vector<double> values = magnitudes(10, 15, 0x7BFF);
  for (uint32_t code = 0; code <= 0xFFFF; ++code) {
    const Fp16 h{static_cast<uint16_t>(code)};
    const float v = to_float(h);
    ASSERT_EQ(std::signbit(v), code >= 0x8000);
    const uint32_t magnitude = code & 0x7FFF;
    if (magnitude > 0x7C00) {
      ASSERT_TRUE(std::isnan(v));
      ASSERT_EQ(to_fp16(v).bits, code | 0x0200) << "quiet, payload kept";
    } else {
      ASSERT_EQ(std::fabs(v), magnitude == 0x7C00 ? HUGE_VAL : values[magnitude]) << code;
      ASSERT_EQ(to_fp16(v).bits, code);
    }
  }
}

TEST(Fp16, EncodesToTheNearestEven) {
  const std::vector<double> values = magnitudes(10, 15, 0x7BFF);
  for (float v : rounding_cases(values)) {
    if (std::fabs(v) >= 65520.0f) continue;
    ASSERT_EQ(uint32_t{to_fp16(v).bits}, (std::signbit(v) ? 0x8000u : 0u) | nearest_even_code(std::fabs(double{v}), values)) << v;
  }
  EXPECT_EQ(to_fp16(std::nextafter(65520.0f, 0.0f)).bits, 0x7BFF);
  EXPECT_EQ(to_fp16(65520.0f).bits, 0x7C00);
  EXPECT_EQ(to_fp16(-1e30f).bits, 0xFC00);
}

TEST(Bf16, EveryCodeRoundTripsAndNeighboursRoundToTheNearestEven) {
  for (uint32_t code = 0; code <= 0xFFFF; ++code) {
    const Bf16 b{static_cast<uint16_t>(code)};
    const float v = to_float(b);
    if (std::isnan(v)) {
      ASSERT_EQ(to_bf16(v).bits, code | 0x0040);
      continue;
    }
    ASSERT_EQ(to_bf16(v).bits, code);
    if (std::isinf(v)) continue;
    // The values between two neighbouring e4m3 numbers: just below, at and just above the midpoint. After the largest finite number comes
    // infinity.
    const uint32_t bits = code << 16;
    ASSERT_EQ(to_bf16(bits_to_float(bits | 0x7FFF)).bits, code);
    ASSERT_EQ(to_bf16(bits_to_float(bits | 0x8000)).bits, code + (code & 1));
    ASSERT_EQ(to_bf16(bits_to_float(bits | 0x8001)).bits, code + 1);
  }
}

TEST(Ue8m0, EveryByte) {
  for (int byte = 0; byte < 255; ++byte) {
    const float v = to_float(E8m0{static_cast<uint8_t>(byte)});
    EXPECT_EQ(double{v}, std::ldexp(1.0, byte - 127)) << byte;
    EXPECT_EQ(to_e8m0(byte - 127).bits, byte);
    if (byte > 0) {
      EXPECT_EQ(pow2(byte - 127), v);
      EXPECT_EQ(ceil_log2(v), byte - 127);
      EXPECT_EQ(ceil_log2(std::nextafter(v, INFINITY)), byte - 126);
      if (byte > 1) {
        EXPECT_EQ(ceil_log2(std::nextafter(v, 0.0f)), byte - 127);
      }
    }
  }
  EXPECT_TRUE(std::isnan(to_float(E8m0{255})));
  EXPECT_EQ(to_e8m0(-500).bits, 0);
  EXPECT_EQ(to_e8m0(500).bits, 255);
}

// V4 specification 19: dividing by 448 and multiplying by fp32(1/448) give the same exponent.
TEST(Ue8m0, DivisionAndReciprocalAgree) {
  for (uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
    const float a = bits_to_float(0x3F800000u | mantissa);
    ASSERT_EQ(ceil_log2(a / 448.0f), ceil_log2(a * (1.0f / 448.0f))) << a;
  }
  for (uint32_t bits = 0x0100; bits < 0x7F80; ++bits) {
    const float a = to_float(Bf16{static_cast<uint16_t>(bits)});
    if (a / 6.0f < 0x1p-126f) continue;
    ASSERT_EQ(ceil_log2(a / 6.0f), ceil_log2(a * (1.0f / 6.0f))) << a;
  }
}

}  // namespace
}  // namespace strata
