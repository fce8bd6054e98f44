#include "backends/opencl/runtime/capabilities.h"

#include <algorithm>
#include <sstream>

#include "backends/opencl/runtime/check.h"
#include "backends/opencl/runtime/platforms.h"
#include "core/check.h"

namespace strata::opencl {
namespace {

// Whether a list of words separated by spaces contains the word.
bool has_word(const std::string& list, std::string_view word) {
  std::istringstream words(list);
  for (std::string one; words >> one;) {
    if (one == word) return true;
  }
  return false;
}

std::vector<int> subgroup_sizes_of(cl_device_id device) {
  size_t bytes = 0;
  if (api().clGetDeviceInfo(device, CL_DEVICE_SUB_GROUP_SIZES_INTEL, 0, nullptr, &bytes) != CL_SUCCESS) return {};
  std::vector<size_t> sizes(bytes / sizeof(size_t));
  check(api().clGetDeviceInfo(device, CL_DEVICE_SUB_GROUP_SIZES_INTEL, bytes, sizes.data(), nullptr), "clGetDeviceInfo");
  return {sizes.begin(), sizes.end()};
}

}  // namespace

Capabilities capabilities_of(cl_device_id device, int subgroup_size) {
  Capabilities c;
  c.name = text_of(device, CL_DEVICE_NAME);
  c.version = text_of(device, CL_DEVICE_VERSION);
  c.driver = text_of(device, CL_DRIVER_VERSION);
  const std::string extensions = text_of(device, CL_DEVICE_EXTENSIONS);
  c.is_gpu = (value_of<cl_ulong>(device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_GPU) != 0;
  if (has_word(extensions, "cl_khr_il_program") || text_of(device, CL_DEVICE_IL_VERSION).find("SPIR-V") != std::string::npos) {
    c.form = ModuleForm::spirv;
  } else if (text_of(device, CL_DEVICE_VENDOR).find("NVIDIA") != std::string::npos) {
    c.form = ModuleForm::ptx;
  } else if (has_word(extensions, "cl_khr_spir")) {
    c.form = ModuleForm::bitcode;
  }
  c.has_usm = has_word(extensions, "cl_intel_unified_shared_memory");
  c.has_svm = value_of<cl_ulong>(device, CL_DEVICE_SVM_CAPABILITIES) != 0;
  c.has_matrix_engine = has_word(extensions, "cl_intel_subgroup_matrix_multiply_accumulate");
  if (has_word(extensions, "cl_intel_required_subgroup_size") && has_word(extensions, "cl_intel_subgroups")) {
    c.subgroup_sizes = subgroup_sizes_of(device);
    const auto has = [&](int size) { return std::find(c.subgroup_sizes.begin(), c.subgroup_sizes.end(), size) != c.subgroup_sizes.end(); };
    if (subgroup_size != 0) {
      c.subgroup_size = has(subgroup_size) ? subgroup_size : 0;
    } else {
      c.subgroup_size = has(8) ? 8 : has(16) ? 16 : 0;
    }
  }
  if (subgroup_size != 0 && c.subgroup_size == 0) fail(ErrorCode::unsupported, "OpenCL: {} has no sub-groups of {}", c.name, subgroup_size);
  c.compute_units = value_of<cl_uint>(device, CL_DEVICE_MAX_COMPUTE_UNITS);
  c.max_group_items = static_cast<int64_t>(value_of<cl_ulong>(device, CL_DEVICE_MAX_WORK_GROUP_SIZE));
  c.local_memory_bytes = static_cast<int64_t>(value_of<cl_ulong>(device, CL_DEVICE_LOCAL_MEM_SIZE));
  c.cache_bytes = static_cast<int64_t>(value_of<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE));
  c.memory_bytes = static_cast<int64_t>(value_of<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE));
  c.max_allocation_bytes = static_cast<int64_t>(value_of<cl_ulong>(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE));
  return c;
}

}  // namespace strata::opencl
