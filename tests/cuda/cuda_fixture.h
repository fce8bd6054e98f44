// Tests that need a GPU: they skip where there is none.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "strata/error.h"
#include "strata/op.h"
#include "strata/owned_stream.h"
#include "strata/tensor.h"

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

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = open_device({DeviceKind::cuda, 0});
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::unsupported) << error.what();
      GTEST_SKIP() << error.what();
    }
  }

  // The error that f throws.
  template <class F>
  static Error error_of(F&& f) {
    try {
      f();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return Error(ErrorCode::invalid_argument, "");
  }

  // A call with the workspace that it asks for.
  template <class Params>
  void run(const Op<Params>& op, const Params& p) {
    const int64_t bytes = op.workspace_bytes(p, *device_);
    const Tensor workspace(device_, DType::u8, {bytes + 1});
    op(p, {.device = *device_, .workspace = {workspace.view().data, bytes}});
  }

  std::vector<uint8_t> bytes_at(const void* data, size_t bytes) {
    std::vector<uint8_t> host(bytes);
    device_->copy_to_host(host.data(), data, bytes, {});
    device_->synchronize({});
    return host;
  }
  std::vector<int32_t> i32_of(const TensorView& v) {
    std::vector<int32_t> host(static_cast<size_t>(v.numel()));
    device_->copy_to_host(host.data(), v.data, host.size() * sizeof(int32_t), {});
    device_->synchronize({});
    return host;
  }
  bool all(const void* data, size_t bytes, uint8_t value) {
    for (const uint8_t byte : bytes_at(data, bytes)) {
      if (byte != value) return false;
    }
    return true;
  }

  std::shared_ptr<Device> device_;
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
