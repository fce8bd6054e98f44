// Devices that a machine may lack.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "strata/device.h"
#include "strata/error.h"

namespace strata::test {

// The size of OpenCL's sub-groups is the environment's.
inline std::shared_ptr<Device> open_test_device(DeviceId id, Config config) {
  if (id.kind == DeviceKind::opencl) config.opencl_subgroup_size = Config::from_environment().opencl_subgroup_size;
  return open_device(id, config);
}

// Null where the machine or the build has no such device, with the reason. That it is there and cannot be opened is an error all the same;
// so is an absent OpenCL device where STRATA_OPENCL_REQUIRED is set, as `make opencl-test` does.
inline std::shared_ptr<Device> device_or_null(DeviceId id, const Config& config, std::string& reason) {
  try {
    return open_test_device(id, config);
  } catch (const Error& error) {
    const bool required = id.kind == DeviceKind::opencl && std::getenv("STRATA_OPENCL_REQUIRED") != nullptr;
    if (error.code() != ErrorCode::unsupported || required) throw;
    reason = error.what();
    return nullptr;
  }
}

// cuda:0; null without a GPU and in a build without CUDA.
inline std::shared_ptr<Device> gpu_or_null(const Config& config = {}) {
  std::string reason;
  return device_or_null({DeviceKind::cuda, 0}, config, reason);
}

}  // namespace strata::test
