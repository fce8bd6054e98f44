// Identity of a device: its kind, and its index among the devices of that kind. Separate from strata/device.h because OpenCL kernels, in
// C++17, include this header.
#pragma once

#include <cstdint>

namespace strata {

// The backend that a device belongs to.
enum class DeviceKind : uint8_t {
  cpu,     // the host
  cuda,    // an NVIDIA GPU
  opencl,  // an OpenCL device
};

// Kind and index of a device: "cuda:1" is {cuda, 1}.
struct DeviceId {
  DeviceKind kind = DeviceKind::cpu;  // the backend
  int32_t index = 0;                  // of a CPU always 0: the whole machine is one device
  friend constexpr bool operator==(DeviceId a, DeviceId b) { return a.kind == b.kind && a.index == b.index; }
};

}  // namespace strata
