#include "backends/cuda/runtime/check.h"

#include "core/check.h"

namespace strata::cuda {

void throw_error(cudaError_t error, std::string_view call) {
  cudaGetLastError();  // forgets errors that CUDA can forget, so that the next call is not blamed for this one
  const ErrorCode code = error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::device_failure;
  fail(code, "CUDA: {} failed: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace strata::cuda
