// The common part of the "cpu/simd" implementations: they take every call on the CPU that passes the op's check.
#pragma once

#include <utility>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "strata/op.h"

namespace strata::cpu {

template <class Params>
std::vector<Implementation<Params>> simd_implementation(void (*run)(const Params&, const ExecutionContext&)) {
  Implementation<Params> impl;
  impl.name = "cpu/simd";
  impl.supports = [](const Params&, const Device& device) {
    return device.id().kind == DeviceKind::cpu ? Support::yes() : Support::no("runs on the CPU only");
  };
  impl.workspace_bytes = [](const Params&, const Device&) -> size_t { return 0; };
  impl.run = run;
  return {std::move(impl)};
}

}  // namespace strata::cpu
