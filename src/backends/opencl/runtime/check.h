// Converts errors of OpenCL to strata::Error.
#pragma once

#include <string_view>

#include "backends/opencl/runtime/api.h"

namespace strata::opencl {

// The name, as in "CL_INVALID_VALUE", or the number if the standard has no name.
std::string_view error_name(cl_int error);

// Throws device_failure with the call and the error's name and number; out_of_memory for allocation errors.
[[noreturn]] void throw_error(cl_int error, std::string_view call);

inline void check(cl_int error, std::string_view call) {
  if (error != CL_SUCCESS) throw_error(error, call);
}

}  // namespace strata::opencl
