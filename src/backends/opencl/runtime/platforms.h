// The OpenCL devices of the machine, in the order of their numbers: opencl:0 is the first.
#pragma once

#include <string>
#include <vector>

#include "backends/opencl/runtime/api.h"

namespace strata::opencl {

struct FoundDevices {
  // GPUs of all platforms, then accelerators, then CPUs; within a kind as the platforms list them.
  std::vector<cl_device_id> devices;
  // Platforms that name no devices, each with the reason; that there is no platform.
  std::vector<std::string> broken;
};

// Throws unsupported where there is no OpenCL library. No platform is no error.
FoundDevices find_devices();

std::string text_of(cl_device_id device, cl_device_info what);
template <class T>
T value_of(cl_device_id device, cl_device_info what);

}  // namespace strata::opencl
