// The machine's OpenCL devices in the order of their numbers: opencl:0 is the first.
#pragma once

#include <string>
#include <vector>

#include "backends/opencl/runtime/api.h"

namespace strata::opencl {

struct FoundDevices {
  // GPUs of all platforms, then accelerators, then CPUs; each in the platforms' order.
  std::vector<cl_device_id> devices;
  // Why platforms list no devices, one reason per platform; or that there is no platform.
  std::vector<std::string> broken;
};

// Throws unsupported if there is no OpenCL library. A machine without platforms is not an error.
FoundDevices find_devices();

std::string text_of(cl_device_id device, cl_device_info what);
template <class T>
T value_of(cl_device_id device, cl_device_info what);

}  // namespace strata::opencl
