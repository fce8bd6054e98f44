#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "strata/error.h"
#include "strata/ops/rope.h"

namespace strata {
namespace {

RopeConfig compressed_layers() { return {.dim = 64, .theta = 160000.0, .factor = 16.0, .original_max_position = 65536}; }

std::array<float, 32> frequencies(const RopeConfig& config) {
  std::array<float, 32> f{};
  rope_frequencies(config, f.data());
  return f;
}

TEST(RopeFrequencies, WithoutYarn) {
  const auto f = frequencies({});
  for (int i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(f[static_cast<size_t>(i)], static_cast<float>(1.0 / std::pow(10000.0, 2.0 * i / 64.0)));
  EXPECT_EQ(frequencies({.factor = 0.0}), f) << "a factor of at most 1 means none";
}

// V4 specification 19: low = 15, high = 25.
TEST(RopeFrequencies, YarnOfV4) {
  const auto f = frequencies(compressed_layers());
  const auto plain = [](int i) { return std::pow(160000.0, -2.0 * i / 64.0); };
  for (int i = 0; i < 32; ++i) {
    const double ramp = i <= 15 ? 0.0 : i >= 25 ? 1.0 : (i - 15) / 10.0;
    EXPECT_FLOAT_EQ(f[static_cast<size_t>(i)], static_cast<float>(plain(i) / 16.0 * ramp + plain(i) * (1.0 - ramp))) << i;
  }
  EXPECT_EQ(f[0], 1.0f);
  EXPECT_EQ(f[15], static_cast<float>(plain(15)));
  EXPECT_NE(f[16], static_cast<float>(plain(16)));
  EXPECT_NE(f[24], static_cast<float>(plain(24) / 16.0));
  EXPECT_EQ(f[31], static_cast<float>(std::pow(160000.0, -62.0 / 64.0) / 16.0));
  EXPECT_FLOAT_EQ(f[20], static_cast<float>(std::pow(160000.0, -40.0 / 64.0) * (0.5 / 16.0 + 0.5)));
}

// MLA specification 6.1 with the numbers of V3: low = 10, high = 23.
TEST(RopeFrequencies, YarnOfV3) {
  const auto f = frequencies({.theta = 10000.0, .factor = 40.0, .original_max_position = 4096});
  const auto plain = [](int i) { return std::pow(10000.0, -2.0 * i / 64.0); };
  EXPECT_FLOAT_EQ(f[10], static_cast<float>(plain(10)));
  EXPECT_FLOAT_EQ(f[11], static_cast<float>(plain(11) * (1.0 / 13.0 / 40.0 + 12.0 / 13.0)));
  EXPECT_FLOAT_EQ(f[23], static_cast<float>(plain(23) / 40.0));
}

TEST(RopeFrequencies, EqualBoundsOfTheRamp) {
  const auto f = frequencies({.theta = 10000.0, .factor = 4.0, .original_max_position = 1});
  EXPECT_EQ(f[0], 1.0f);
  for (float v : f) EXPECT_TRUE(std::isfinite(v) && v > 0.0f);
}

TEST(RopeTable, CosinesThenSinesOfTheFp32Angle) {
  const auto device = open_device({});
  const RopeConfig config = compressed_layers();
  const auto f = frequencies(config);
  const Tensor table = build_rope_table(config, 1000, device);
  ASSERT_EQ(table.view().describe(), "f32[1000, 64] on cpu");
  for (int64_t p : {0, 1, 7, 999}) {
    const float* row = table.view().row<float>(p);
    for (size_t i = 0; i < 32; ++i) {
      const float angle = static_cast<float>(p) * f[i];
      EXPECT_EQ(row[i], static_cast<float>(std::cos(double{angle})));
      EXPECT_EQ(row[32 + i], static_cast<float>(std::sin(double{angle})));
    }
  }
}

TEST(RopeTable, GainMultipliesBoth) {
  const auto device = open_device({});
  const Tensor plain = build_rope_table({}, 4, device), doubled = build_rope_table({.mscale_gain = 2.0}, 4, device);
  for (int64_t i = 0; i < 4 * 64; ++i) EXPECT_EQ(doubled.view().ptr<float>()[i], 2.0f * plain.view().ptr<float>()[i]);
}

void expect_refused(const RopeConfig& config, int64_t positions, std::initializer_list<const char*> words) {
  try {
    static_cast<void>(build_rope_table(config, positions, open_device({})));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    for (const char* word : words) EXPECT_THAT(error.what(), testing::HasSubstr(word));
  }
}

TEST(RopeTable, RefusesWhatCannotBe) {
  expect_refused({.dim = 63}, 4, {"dim", "even", "63"});
  expect_refused({.dim = 0}, 4, {"dim", "0"});
  expect_refused({.theta = 1.0}, 4, {"theta", "above 1", "1"});
  expect_refused({.factor = NAN}, 4, {"factor", "finite", "nan"});
  expect_refused({.factor = 16.0}, 4, {"original_max_position", "at least 1", "0"});
  expect_refused({.factor = 16.0, .original_max_position = 4096, .beta_slow = 0.0}, 4, {"beta_slow", "positive", "0"});
  expect_refused({.mscale_gain = INFINITY}, 4, {"mscale_gain", "finite", "inf"});
  expect_refused({}, 0, {"max_positions", "at least 1", "0"});
  expect_refused({}, (int64_t{1} << 24) + 1, {"max_positions", "2^24", "16777217"});
  EXPECT_THROW(build_rope_table({}, 1, nullptr), Error);
}

}  // namespace
}  // namespace strata
