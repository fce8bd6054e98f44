#include "backends/opencl/runtime/modules.h"

#include "core/check.h"

namespace strata::opencl {

std::string_view to_string(Variant variant) {
  switch (variant) {
    case Variant::basic: return "basic";
    case Variant::basic16: return "basic16";
    case Variant::subgroup8: return "subgroup8";
    case Variant::subgroup16: return "subgroup16";
    case Variant::xmx8: return "xmx8";
    case Variant::xmx16: return "xmx16";
    case Variant::xmx_emulated8: return "xmx_emulated8";
    case Variant::xmx_emulated16: return "xmx_emulated16";
  }
  return "unknown";
}

const Module& find_module(std::string_view name, Variant variant) {
  for (const Module& module : modules()) {
    if (module.name == name && module.variant == variant) return module;
  }
  fail(ErrorCode::unsupported, "OpenCL: this build has no module {} for {}", name, to_string(variant));
}

}  // namespace strata::opencl
