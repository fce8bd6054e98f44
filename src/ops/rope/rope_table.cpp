#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "core/ceil_div.h"
#include "core/check.h"
#include "core/planning_device.h"
#include "core/thread_team.h"
#include "strata/ops/rope.h"

namespace strata {
namespace {

constexpr int32_t kMaxRotaryDim = 1024;

void check(const RopeConfig& config) {
  require(config.dim >= 2 && config.dim % 2 == 0 && config.dim <= kMaxRotaryDim, "rope: dim must be even and in [2, {}], is {}",
          kMaxRotaryDim, config.dim);
  require(std::isfinite(config.theta) && config.theta > 1.0, "rope: theta must be above 1, is {}", config.theta);
  require(std::isfinite(config.factor), "rope: factor must be finite, is {}", config.factor);
  require(std::isfinite(config.mscale_gain), "rope: mscale_gain must be finite, is {}", config.mscale_gain);
  if (config.factor <= 1.0) return;
  require(config.original_max_position >= 1, "rope: original_max_position must be at least 1 with a factor of {}, is {}", config.factor,
          config.original_max_position);
  require(config.beta_slow > 0.0 && config.beta_fast > 0.0, "rope: beta_fast and beta_slow must be positive, are {} and {}",
          config.beta_fast, config.beta_slow);
}

// The pair whose wave turns `rotations` times within the original context.
double correction_dim(const RopeConfig& config, double rotations) {
  const double length = static_cast<double>(config.original_max_position);
  return config.dim * std::log(length / (2.0 * std::numbers::pi * rotations)) / (2.0 * std::log(config.theta));
}

// One row: the angle is rounded to fp32 as in every public table; its cosine and sine are computed in double.
void fill_row(const RopeConfig& config, const std::vector<float>& frequencies, int64_t position, float* row) {
  const int32_t half = config.dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * frequencies[static_cast<size_t>(i)];
    row[i] = static_cast<float>(std::cos(double{angle}) * config.mscale_gain);
    row[half + i] = static_cast<float>(std::sin(double{angle}) * config.mscale_gain);
  }
}

}  // namespace

void rope_frequencies(const RopeConfig& config, float* frequencies) {
  check(config);
  const bool yarn = config.factor > 1.0;
  double low = 0.0, high = 0.0;
  if (yarn) {
    low = correction_dim(config, config.beta_fast);
    high = correction_dim(config, config.beta_slow);
    if (config.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, config.dim - 1.0);
    if (low == high) high += 0.001;
  }
  for (int32_t i = 0; i < config.dim / 2; ++i) {
    double frequency = std::pow(config.theta, -2.0 * i / config.dim);
    if (yarn) {
      const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
      frequency = frequency / config.factor * ramp + frequency * (1.0 - ramp);
    }
    frequencies[i] = static_cast<float>(frequency);
  }
}

Tensor build_rope_table(const RopeConfig& config, int64_t max_positions, const std::shared_ptr<Device>& device) {
  require(max_positions >= 1, "rope: max_positions must be at least 1, is {}", max_positions);
  require(max_positions <= int64_t{1} << 24, "rope: max_positions must be at most 2^24, where fp32 still has every position, is {}",
          max_positions);
  require(device != nullptr, "rope: device is required, is null");
  check(config);
  std::vector<float> frequencies(static_cast<size_t>(config.dim) / 2);
  rope_frequencies(config, frequencies.data());

  Tensor table(device, DType::f32, {max_positions, config.dim});
  if (is_planning(*device)) return table;
  const bool on_host = device->id().kind == DeviceKind::cpu;
  std::vector<float> staging(on_host ? 0 : static_cast<size_t>(max_positions * config.dim));
  float* rows = on_host ? table.view().ptr<float>() : staging.data();
  constexpr int64_t kPositions = 256;  // of a task
  for_each_of(ceil_div(max_positions, kPositions), available_cores(), [&](int64_t task) {
    const int64_t end = std::min(max_positions, (task + 1) * kPositions);
    for (int64_t p = task * kPositions; p < end; ++p) fill_row(config, frequencies, p, rows + p * config.dim);
  });
  if (!on_host) {
    device->copy_from_host(table.view().data, staging.data(), table.allocated_bytes(), Stream{});
    device->synchronize(Stream{});
  }
  return table;
}

}  // namespace strata
