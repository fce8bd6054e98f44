// A module built for a device.
#pragma once

#include <string>

#include "backends/opencl/runtime/capabilities.h"
#include "backends/opencl/runtime/modules.h"

namespace strata::opencl {

// Throws unsupported where the device takes no form of the module, device_failure with the build's log where it does not build.
// cache_folder: built programs are read from there, and written to it; a file that cannot be read or written is passed over.
cl_program build_program(cl_context context, cl_device_id device, const Capabilities& capabilities, const Module& module,
                         const std::string& cache_folder);
void release_program(cl_program program);

}  // namespace strata::opencl
