// Measures a GPU's limits for benchmarks: Device::probe_read and probe_launch.
#pragma once

#include <cstddef>

#include "strata/device.h"

namespace strata::cuda {

// Reads `bytes` bytes (whole 64 KiB), aligned to 16; writes at most 4 bytes to `sink`.
void read_memory(const Device& device, const void* data, size_t bytes, void* sink, Stream stream);
void launch_nothing(const Device& device, Stream stream);

}  // namespace strata::cuda
