// TMA: copies boxes of a tensor between global and shared memory. sm_90.
#pragma once

#include <cstdint>

#include "backends/cuda/ptx/warpgroup.cuh"

namespace strata::cuda::ptx {

// For data that is read once: evicted first from L2.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Loads the box of a 2-D tensor map at (column, row); its bytes arrive on the barrier.
__device__ __forceinline__ void tma_load_2d(uint32_t shared, const void* tensor_map, int column, int row, uint32_t barrier,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          shared),
      "l"(tensor_map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_2d(uint32_t shared, const void* tensor_map, int column, int row, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
               "l"(tensor_map), "r"(column), "r"(row), "r"(barrier)
               : "memory");
}
// Loads the box of a 3-D tensor map at (column, row, plane).
__device__ __forceinline__ void tma_load_3d(uint32_t shared, const void* tensor_map, int column, int row, int plane, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
               "l"(tensor_map), "r"(column), "r"(row), "r"(plane), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void tma_load_3d(uint32_t shared, const void* tensor_map, int column, int row, int plane, uint32_t barrier,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::
          "r"(shared),
      "l"(tensor_map), "r"(column), "r"(row), "r"(plane), "r"(barrier), "l"(policy)
      : "memory");
}
// Loads to the same offset in the CTAs of a cluster that `blocks` has a bit for, and arrives on their barriers.
__device__ __forceinline__ void tma_load_2d_multicast(uint32_t shared, const void* tensor_map, int column, int row, uint32_t barrier,
                                                      uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::
          "r"(shared),
      "l"(tensor_map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}

// Stores back to global memory; elements outside the tensor are skipped. Complete when bulk_store_wait returns, for this thread's commits.
__device__ __forceinline__ void tma_store_2d(const void* tensor_map, uint32_t shared, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(tensor_map), "r"(column), "r"(row),
               "r"(shared)
               : "memory");
}
__device__ __forceinline__ void tma_store_3d(const void* tensor_map, uint32_t shared, int column, int row, int plane) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(tensor_map), "r"(column), "r"(row),
               "r"(plane), "r"(shared)
               : "memory");
}
// Loads the box of a tensor map of column groups at (row, group, plane).
__device__ __forceinline__ void tma_load_groups(uint32_t shared, const void* tensor_map, int row, int group, int plane, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {0, %2, %3, %4}], [%5];" ::"r"(shared),
      "l"(tensor_map), "r"(row), "r"(group), "r"(plane), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void tma_load_groups_multicast(uint32_t shared, const void* tensor_map, int row, int group, int plane,
                                                          uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {0, %2, %3, %4}], [%5], "
      "%6;" ::"r"(shared),
      "l"(tensor_map), "r"(row), "r"(group), "r"(plane), "r"(barrier), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void tma_store_groups(const void* tensor_map, uint32_t shared, int row, int group, int plane, uint64_t policy) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%0, {0, %1, %2, %3}], [%4], %5;" ::"l"(tensor_map),
               "r"(row), "r"(group), "r"(plane), "r"(shared), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Waits only until shared memory has been read, for all but the latest kPending commits.
template <int kPending = 0>
__device__ __forceinline__ void bulk_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const void* tensor_map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(tensor_map) : "memory");
}

}  // namespace strata::cuda::ptx
