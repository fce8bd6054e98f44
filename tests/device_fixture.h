// Tests that need an accelerator: they skip where there is none.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "gpu.h"
#include "strata/error.h"
#include "strata/op.h"
#include "strata/owned_stream.h"
#include "strata/tensor.h"

namespace strata::test {

class DeviceTest : public testing::Test {
 protected:
  explicit DeviceTest(DeviceId id) : id_(id) {}

  void SetUp() override {
    std::string reason;
    device_ = device_or_null(id_, {}, reason);
    if (device_ == nullptr) GTEST_SKIP() << reason;
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

  // A call with the workspace that it needs.
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

 private:
  DeviceId id_;
};

}  // namespace strata::test
