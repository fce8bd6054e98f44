// Tests that need a GPU: they skip where there is none.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "device_fixture.h"

namespace strata::test {

// Results that are the same but for rounding.
inline void expect_alike(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(std::isfinite(a[i]) && std::isfinite(b[i])) << i;
    difference += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  }
  EXPECT_GT(size, 0.0);
  EXPECT_LT(std::sqrt(difference / size), 5e-3);
}

class CudaTest : public DeviceTest {
 protected:
  CudaTest() : DeviceTest({DeviceKind::cuda, 0}) {}
};

// Tests of what only kernels for Hopper do.
class HopperTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    const DeviceProperties p = device_->properties();
    if (p.compute_major != 9 || p.compute_minor != 0) GTEST_SKIP() << "needs compute capability 9.0";
  }
};

}  // namespace strata::test
