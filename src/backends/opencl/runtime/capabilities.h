// What the kernels' launchers ask of an OpenCL device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/opencl/runtime/api.h"

namespace strata::opencl {

// The form of a module that the device takes.
enum class ModuleForm : uint8_t { none, spirv, bitcode, ptx };

struct Capabilities {
  std::string name, version, driver;
  ModuleForm form = ModuleForm::none;
  bool is_gpu = false;
  bool has_usm = false;  // cl_intel_unified_shared_memory; else shared virtual memory, coarse-grained at least
  bool has_svm = false;
  bool has_matrix_engine = false;  // cl_intel_subgroup_matrix_multiply_accumulate
  std::vector<int> subgroup_sizes{};
  int subgroup_size = 0;  // that kernels are compiled for: 8 where the device has it (as its matrix engine then takes), else 16; 0: neither
  int64_t compute_units = 0;
  int64_t max_group_items = 0;
  int64_t local_memory_bytes = 0;
  int64_t cache_bytes = 0;
  int64_t memory_bytes = 0;
  int64_t max_allocation_bytes = 0;
};

// subgroup_size: 8 or 16, or 0 for what the device prefers. Throws unsupported where the device does not have it.
Capabilities capabilities_of(cl_device_id device, int subgroup_size);

}  // namespace strata::opencl
