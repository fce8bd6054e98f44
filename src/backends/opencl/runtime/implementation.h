// The common part of OpenCL implementations. They run on OpenCL devices only, as the variant in their name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/opencl/runtime/opencl_device.h"
#include "strata/op.h"

namespace strata::opencl {

// The names of implementations: "opencl/basic", ...
enum class Flavour : uint8_t { basic, subgroup, xmx, xmx_emulated };

template <class Params>
struct Traits {
  Support (*supports)(const Params&, const Capabilities&) = nullptr;         // null: supports every call that passes the op's check
  int64_t (*workspace_bytes)(const Params&, const Capabilities&) = nullptr;  // null: needs none
  void (*run)(const Params&, Variant, const ExecutionContext&) = nullptr;
};

std::string_view name_of(Flavour flavour);  // "opencl/basic"
// Whether the device can run modules of the flavour.
Support supports(Flavour flavour, const Capabilities& capabilities);
Variant variant_of(Flavour flavour, const Capabilities& capabilities);

template <class Params>
Implementation<Params> implementation(Flavour flavour, Traits<Params> traits) {
  Implementation<Params> impl;
  impl.name = name_of(flavour);
  impl.supports = [flavour, traits](const Params& p, const Device& device) {
    if (!is_opencl(device)) return Support::no("runs on OpenCL devices only");
    const Capabilities& c = capabilities(device);
    Support support = supports(flavour, c);
    return support && traits.supports != nullptr ? traits.supports(p, c) : support;
  };
  impl.workspace_bytes = [traits](const Params& p, const Device& device) -> int64_t {
    return traits.workspace_bytes == nullptr ? 0 : traits.workspace_bytes(p, capabilities(device));
  };
  impl.run = [flavour, traits](const Params& p, const ExecutionContext& context) {
    traits.run(p, variant_of(flavour, capabilities(context.device)), context);
  };
  if (flavour == Flavour::xmx_emulated) {
    impl.prefers = [](const Params&, const Device&) { return Support::no("is for tests of opencl/xmx: the instruction is emulated"); };
  }
  return impl;
}

// The three implementations of an op with a matrix kernel.
template <class Params>
std::vector<Implementation<Params>> with_matrix(const Traits<Params>& basic, const Traits<Params>& matrix) {
  return {implementation(Flavour::xmx, matrix), implementation(Flavour::basic, basic), implementation(Flavour::xmx_emulated, matrix)};
}

}  // namespace strata::opencl
