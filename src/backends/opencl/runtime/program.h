// Builds modules for a device.
#pragma once

#include <string>

#include "backends/opencl/runtime/capabilities.h"
#include "backends/opencl/runtime/modules.h"

namespace strata::opencl {

// Throws unsupported if the device accepts no form of the module, and device_failure with the build log if it does not build.
// cache_folder: holds built programs. Files that cannot be read or written are ignored.
cl_program build_program(cl_context context, cl_device_id device, const Capabilities& capabilities, const Module& module,
                         const std::string& cache_folder);
void release_program(cl_program program);

}  // namespace strata::opencl
