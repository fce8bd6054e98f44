// What benchmarks measure a GPU's limits with: Device::probe_read and probe_launch.
#pragma once

#include <cstddef>

#include "strata/device.h"

namespace strata::cuda {

// Reads the whole 64 KiB of `bytes` bytes, aligned to 16, and writes nothing worth mentioning (4 bytes at `sink`, perhaps).
void read_memory(const Device& device, const void* data, size_t bytes, void* sink, Stream stream);
void launch_nothing(const Device& device, Stream stream);

}  // namespace strata::cuda
