// The compiled kernels: one module per op and variant, in every form that a device may accept.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace strata::opencl {

// What a module was compiled for. A number is its sub-group size; for `basic`, the device's compiler chooses the size. Callers pass
// `basic`; on devices with sub-groups of 16 the runtime uses `basic16` instead.
enum class Variant : uint8_t { basic, basic16, subgroup8, subgroup16, xmx8, xmx16, xmx_emulated8, xmx_emulated16 };

std::string_view to_string(Variant variant);

struct Module {
  std::string_view name;  // of the source file: "norm" for norm/norm.clcpp
  Variant variant = Variant::basic;
  std::span<const unsigned char> spirv;    // SPIR-V 1.1: Intel's GPUs and CPUs
  std::span<const unsigned char> bitcode;  // LLVM bitcode of spir64: PoCL 3.1. Basic modules only
  std::span<const unsigned char> ptx;      // NVIDIA's GPUs. Basic modules only
};

// All modules of this build, in a generated source.
std::span<const Module> modules();

// Throws unsupported if the build has no such module.
const Module& find_module(std::string_view name, Variant variant);

}  // namespace strata::opencl
