// Errors of the CUDA runtime as strata::Error.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace strata::cuda {

// Throws device_failure with the call and CUDA's name and message for the error; out_of_memory for cudaErrorMemoryAllocation.
[[noreturn]] void throw_error(cudaError_t error, std::string_view call);

inline void check(cudaError_t error, std::string_view call) {
  if (error != cudaSuccess) throw_error(error, call);
}

// After a kernel launch: throws for an invalid configuration. Errors during execution show at the next synchronisation.
inline void check_launch(std::string_view kernel) { check(cudaGetLastError(), kernel); }

}  // namespace strata::cuda
