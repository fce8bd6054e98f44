// The scorers, and the calls that they take.
#pragma once

#include <fmt/format.h>

#include <span>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/indexer/score.h"
#include "strata/op.h"

namespace strata::cpu::indexer {

struct Path {
  const char* name;
  CpuIsa needs;
  Scorer (*scorer)(const Device& device);
};

// Fastest first on this machine. The paths live as long as the program.
std::span<const Path> paths();

inline Support supports_device(const Path& path, const Device& device) {
  if (device.id().kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  if (isa_of(device) >= path.needs) return Support::yes();
  return Support::no(fmt::format("needs {}, the device has {}", to_string(path.needs), to_string(isa_of(device))));
}
inline Support supports_cache(const PagedCache& cache) {
  if (cache.row_dim == kDim) return Support::yes();
  return Support::no(fmt::format("vectors must have {} values, have {}", kDim, cache.row_dim));
}

}  // namespace strata::cpu::indexer
