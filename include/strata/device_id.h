// Which device: its kind, and its number among those of the kind. Part of strata/device.h, for code that needs no more: kernels in C++ for
// OpenCL, which is C++17.
#pragma once

#include <cstdint>

namespace strata {

enum class DeviceKind : uint8_t { cpu, cuda, opencl };

struct DeviceId {
  DeviceKind kind = DeviceKind::cpu;
  int32_t index = 0;  // of a CPU always 0: all of the machine is one device
  friend constexpr bool operator==(DeviceId a, DeviceId b) { return a.kind == b.kind && a.index == b.index; }
};

}  // namespace strata
