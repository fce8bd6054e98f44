// The common part of CUDA implementations: they run on CUDA devices only, with the device made current.
#pragma once

#include <string_view>
#include <vector>

#include "backends/cuda/runtime/cuda_device.h"
#include "strata/op.h"

namespace strata::cuda {

template <class Params>
struct Traits {
  Support (*supports)(const Params&, const Capabilities&) = nullptr;        // null: every call that passes the op's check
  size_t (*workspace_bytes)(const Params&, const Capabilities&) = nullptr;  // null: none
  void (*run)(const Params&, const ExecutionContext&) = nullptr;
  Support (*prefers)(const Params&, const Capabilities&) = nullptr;               // null: every call that it supports
  bool (*fuses)(const Params&, const Capabilities&, std::string_view) = nullptr;  // null: nothing
};

template <class Params>
Implementation<Params> implementation(std::string_view name, Traits<Params> traits) {
  Implementation<Params> impl;
  impl.name = name;
  impl.supports = [traits](const Params& p, const Device& device) {
    if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
    return traits.supports == nullptr ? Support::yes() : traits.supports(p, capabilities(device));
  };
  impl.workspace_bytes = [traits](const Params& p, const Device& device) -> size_t {
    return traits.workspace_bytes == nullptr ? 0 : traits.workspace_bytes(p, capabilities(device));
  };
  impl.run = [traits](const Params& p, const ExecutionContext& context) {
    DeviceScope scope(context.device.id().index);
    traits.run(p, context);
  };
  if (traits.prefers != nullptr) {
    impl.prefers = [traits](const Params& p, const Device& device) { return traits.prefers(p, capabilities(device)); };
  }
  if (traits.fuses != nullptr) {
    impl.fuses = [traits](const Params& p, const Device& device, std::string_view fusion) {
      return is_cuda(device) && traits.fuses(p, capabilities(device), fusion);
    };
  }
  return impl;
}

// "cuda/smxx" for kernels that run on every architecture from sm_80.
template <class Params>
Implementation<Params> smxx_implementation(Traits<Params> traits) {
  return implementation<Params>("cuda/smxx", traits);
}

// For kernels with Hopper's own instructions: as `traits`, on sm_90 only.
inline Support needs_sm90(const Capabilities& c) { return c.sm90() ? Support::yes() : Support::no("needs compute capability 9.0"); }

}  // namespace strata::cuda
