// The copy engine: boxes of a tensor of three dimensions; see tma.cuh. sm_90.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// The box of a 3-D tensor map at (column, row, plane); arrives with its bytes on the barrier.
__device__ __forceinline__ void tma_load_3d(uint32_t shared, const void* tensor_map, int column, int row, int plane, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
               "l"(tensor_map), "r"(column), "r"(row), "r"(plane), "r"(barrier)
               : "memory");
}

}  // namespace strata::cuda::ptx
