// Tensor-core products. sm_80.
#pragma once

#include <cstdint>

#include "backends/cuda/ptx/ldmatrix.cuh"
#include "backends/cuda/ptx/mma_bf16.cuh"

namespace strata::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

}  // namespace strata::cuda::ptx
