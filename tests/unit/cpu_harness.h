// Runs one implementation of an op by name on a CPU device capped at one instruction set.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/quantize.h"
#include "ops/factories.h"

namespace strata::cpu_test {

inline constexpr CpuIsa kCaps[] = {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::best};

inline std::shared_ptr<Device> capped(CpuIsa isa) {
  Config config;
  config.cpu_isa = isa;
  config.cpu_threads = 2;
  return open_device({}, config);
}

// False when there is no such implementation or it refuses the call. The workspace is NaN as bf16 and fp32.
template <class Params>
bool run(const Op<Params>& op, const std::string& name, const Params& params, Device& device) {
  op.check(params, device.id());
  for (const auto& impl : op.implementations()) {
    if (impl.name != name || !impl.supports(params, device)) continue;
    const int64_t bytes = impl.workspace_bytes(params, device);
    void* const workspace = device.allocate(bytes + 1);
    device.fill(workspace, 0xFF, bytes + 1, {});
    impl.run(params, {device, {}, {workspace, bytes}});
    device.deallocate(workspace);
    return true;
  }
  return false;
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  float normal(float size = 1.0f) { return size * normal_(engine_); }
  std::vector<float> normals(int64_t n, float size = 1.0f) {
    std::vector<float> v(static_cast<size_t>(n));
    for (auto& x : v) x = normal(size);
    return v;
  }
  // Blocks of different sizes, zeros, and values that fall on ties of the quantisers.
  std::vector<Bf16> bf16(int64_t n) {
    std::vector<Bf16> v(static_cast<size_t>(n));
    float size = 1.0f;
    for (size_t i = 0; i < v.size(); ++i) {
      if (i % 64 == 0) size = below(8) == 0 ? 0.0f : std::exp2(static_cast<float>(below(24)) - 14.0f);
      v[i] = to_bf16(below(4) == 0 ? size * 0.25f * static_cast<float>(below(17) - 8) : normal(size));
    }
    return v;
  }
  std::vector<uint8_t> bytes(int64_t n) {
    std::vector<uint8_t> v(static_cast<size_t>(n));
    for (auto& x : v) x = static_cast<uint8_t>(engine_());
    return v;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// cos, sin of plausible angles.
inline std::vector<float> rope_table(int64_t positions, int64_t rotary) {
  std::vector<float> table(static_cast<size_t>(positions * rotary));
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < rotary / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
      table[static_cast<size_t>(p * rotary + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(p * rotary + rotary / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

template <class T>
TensorView view(std::vector<T>& v, DType dtype, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(v.data(), dtype, {}, shape);
}

// bf16 arrays equal but for one step of the last place here and there, `flips` of the elements at most.
inline void expect_near_bf16(const std::vector<Bf16>& expected, const std::vector<Bf16>& actual, double flips, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  size_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].bits == actual[i].bits) continue;
    ++different;
    const float e = to_float(expected[i]), a = to_float(actual[i]);
    ASSERT_LE(std::abs(e - a), std::abs(e) / 128 + 1e-6f) << what << " element " << i;
  }
  EXPECT_LE(static_cast<double>(different), flips * static_cast<double>(expected.size()) + 2) << what;
}

// Byte arrays equal but for differences of one step here and there.
inline void expect_near_codes(const std::vector<uint8_t>& expected, const std::vector<uint8_t>& actual, double flips,
                              const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  size_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) different += expected[i] != actual[i];
  EXPECT_LE(static_cast<double>(different), flips * static_cast<double>(expected.size()) + 2) << what;
}

}  // namespace strata::cpu_test
