// An NVIDIA GPU as a Device, and the properties that the kernels' launchers need.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/device.h"

namespace strata::cuda {

struct Capabilities {
  int major = 0, minor = 0;  // compute capability
  int num_sms = 0;
  int max_shared_bytes = 0;                               // dynamic shared memory that a CTA may opt in to
  bool sm90() const { return major == 9 && minor == 0; }  // wgmma, TMA: kernels in sm90/
};

bool is_cuda(const Device& device);
// For any device for which is_cuda is true.
Capabilities capabilities(const Device& device);

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

// Makes the device current within a scope, and restores the previous one at its end.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool switched_ = false;
};

}  // namespace strata::cuda
