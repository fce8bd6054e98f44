// Errors of OpenCL as strata::Error.
#pragma once

#include <string_view>

#include "backends/opencl/runtime/api.h"

namespace strata::opencl {

// "CL_INVALID_VALUE", or the number of an error that is not in the standard.
std::string_view error_name(cl_int error);

// Throws device_failure with the call and OpenCL's name and number of the error; out_of_memory for the errors of allocations.
[[noreturn]] void throw_error(cl_int error, std::string_view call);

inline void check(cl_int error, std::string_view call) {
  if (error != CL_SUCCESS) throw_error(error, call);
}

}  // namespace strata::opencl
