// Layouts of operands and sums of a warpgroup's products.
#pragma once

#include <cstdint>

namespace strata::cuda {

inline constexpr int kWarpgroup = 128;

// The index of this thread's warpgroup in the CTA, in a form that the compiler knows to be warp-uniform. Values derived from it are then
// computed in uniform registers, where wgmma needs its descriptors. Otherwise each takes an extra instruction and its latency to get there.
__device__ __forceinline__ int own_warpgroup() { return static_cast<int>(__shfl_sync(~0u, threadIdx.x / kWarpgroup, 0)); }

// Byte offset of a 16-byte unit in [rows][8 units], with units swizzled by their row, as in the 128-byte swizzle of copies and wgmma.
__device__ __forceinline__ uint32_t unit_offset(int row, int unit) { return static_cast<uint32_t>(row * 128 + ((unit ^ (row & 7)) << 4)); }

// A thread's accumulators belong to this one of the 64 rows, and to the row 8 later.
__device__ __forceinline__ int accumulator_row() { return threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4; }

}  // namespace strata::cuda
