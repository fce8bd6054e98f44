// Where operands and sums of a warpgroup's products lie.
#pragma once

#include <cstdint>

namespace strata::cuda {

inline constexpr int kWarpgroup = 128;

// Which warpgroup of the block this thread is of. It comes such that the compiler knows that it is the same in all lanes of a warp: what
// follows from it is computed in uniform registers, where wgmma wants its descriptors. From others it takes an instruction each to bring
// them there, and the time until they are.
__device__ __forceinline__ int own_warpgroup() { return static_cast<int>(__shfl_sync(~0u, threadIdx.x / kWarpgroup, 0)); }

// Byte offset of a 16-byte unit in [rows][8 units] of which units are swizzled by their row, as copies and wgmma have 128 bytes a row.
__device__ __forceinline__ uint32_t unit_offset(int row, int unit) { return static_cast<uint32_t>(row * 128 + ((unit ^ (row & 7)) << 4)); }

// A thread's accumulators belong to this one of the 64 rows, and to that 8 further on.
__device__ __forceinline__ int accumulator_row() { return threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4; }

}  // namespace strata::cuda
