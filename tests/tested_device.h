// Tests of whole layers that run on any device: on the CPU, or on the one that STRATA_TEST_DEVICE names, as the tests `opencl.` of other
// folders' programs do.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "gpu.h"

namespace strata::test {

inline DeviceId tested_device() {
  const char* const name = std::getenv("STRATA_TEST_DEVICE");
  return name == nullptr ? DeviceId{} : parse_device_id(name);
}
inline std::shared_ptr<Device> open_tested_device(const Config& config = {}) { return open_test_device(tested_device(), config); }

// Skips where the device is absent.
class TestedDevice : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (device_or_null(tested_device(), {}, reason) == nullptr) GTEST_SKIP() << reason;
  }
};

}  // namespace strata::test
