// Which scorers there are, and which calls they take.
#pragma once

#include <fmt/format.h>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/indexer/score.h"
#include "strata/op.h"

namespace strata::cpu::indexer {

struct Path {
  const char* name;
  CpuIsa needs;
  Scorer (*scorer)(const Device& device);
};

// Fastest first.
inline constexpr Path kPaths[] = {
    {"cpu/amx", CpuIsa::amx, [](const Device&) { return amx_scorer(); }},
    {"cpu/avx512_bf16", CpuIsa::avx512_bf16, [](const Device&) { return avx512_bf16_scorer(); }},
    {"cpu/simd", CpuIsa::portable, simd_scorer},
};

inline Support supports_device(const Path& path, const Device& device) {
  if (device.id().kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  if (isa_of(device) < path.needs)
    return Support::no(fmt::format("needs {}, the device has {}", to_string(path.needs), to_string(isa_of(device))));
  return Support::yes();
}
inline Support supports_cache(const PagedCache& cache) {
  if (cache.row_dim != kDim) return Support::no(fmt::format("vectors must have {} values, have {}", kDim, cache.row_dim));
  return Support::yes();
}

}  // namespace strata::cpu::indexer
