// The properties of an OpenCL device that launchers of kernels depend on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/opencl/runtime/api.h"

namespace strata::opencl {

// The form of modules that the device accepts.
enum class ModuleForm : uint8_t { none, spirv, bitcode, ptx };

struct Capabilities {
  std::string name, version, driver;
  ModuleForm form = ModuleForm::none;
  bool is_gpu = false;
  bool has_usm = false;  // cl_intel_unified_shared_memory; otherwise shared virtual memory, at least coarse-grained
  bool has_svm = false;
  bool has_matrix_engine = false;  // cl_intel_subgroup_matrix_multiply_accumulate
  std::vector<int> subgroup_sizes{};
  int subgroup_size = 0;  // that kernels are compiled for: 8 if the device supports it, because its matrix engine then needs it; otherwise
                          // 16, or 0 for neither
  int64_t compute_units = 0;
  int64_t max_group_items = 0;
  int64_t local_memory_bytes = 0;
  int64_t cache_bytes = 0;
  int64_t memory_bytes = 0;
  int64_t max_allocation_bytes = 0;
};

// subgroup_size: 8, 16, or 0 for the device's default. Throws unsupported if the device does not support it.
Capabilities capabilities_of(cl_device_id device, int subgroup_size);

}  // namespace strata::opencl
