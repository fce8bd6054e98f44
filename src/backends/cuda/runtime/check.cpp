#include "backends/cuda/runtime/check.h"

#include "core/check.h"

namespace strata::cuda {

void throw_error(cudaError_t error, std::string_view call) {
  cudaGetLastError();  // clears non-sticky errors, so that the next call does not report this one
  const ErrorCode code = error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::device_failure;
  fail(code, "CUDA: {} failed: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace strata::cuda
