#include "backends/opencl/runtime/implementation.h"

namespace strata::opencl {

std::string_view name_of(Flavour flavour) {
  switch (flavour) {
    case Flavour::basic: return "opencl/basic";
    case Flavour::subgroup: return "opencl/subgroup";
    case Flavour::xmx: return "opencl/xmx";
    case Flavour::xmx_emulated: return "opencl/xmx_emulated";
  }
  return "opencl";
}

Support supports(Flavour flavour, const Capabilities& c) {
  if (flavour == Flavour::basic) return Support::yes();
  if (c.subgroup_size == 0) return Support::no("needs cl_intel_required_subgroup_size with sub-groups of 8 or 16");
  if (c.form != ModuleForm::spirv) return Support::no("needs a device that takes SPIR-V");
  if (flavour == Flavour::xmx && !c.has_matrix_engine) return Support::no("needs cl_intel_subgroup_matrix_multiply_accumulate");
  return Support::yes();
}

Variant variant_of(Flavour flavour, const Capabilities& c) {
  const bool by_8 = c.subgroup_size == 8;
  switch (flavour) {
    case Flavour::basic: break;
    case Flavour::subgroup: return by_8 ? Variant::subgroup8 : Variant::subgroup16;
    case Flavour::xmx: return by_8 ? Variant::xmx8 : Variant::xmx16;
    case Flavour::xmx_emulated: return by_8 ? Variant::xmx_emulated8 : Variant::xmx_emulated16;
  }
  return Variant::basic;
}

}  // namespace strata::opencl
