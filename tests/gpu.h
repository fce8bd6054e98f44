// The GPU of tests that also run without one.
#pragma once

#include <memory>

#include "strata/device.h"
#include "strata/error.h"

namespace strata::test {

// cuda:0; null without a GPU and in a build without CUDA. That it is there and cannot be opened is an error all the same.
inline std::shared_ptr<Device> gpu_or_null(const Config& config = {}) {
  try {
    return open_device({DeviceKind::cuda, 0}, config);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return nullptr;
  }
}

}  // namespace strata::test
