// Bringing near what a kernel is going to read while the kernel in front of it may still run, between launch and wait (start_early).
// A small kernel is a chain of reads that wait for one another: what they find in L2, and in the SM's address tables, costs it a fraction.
// Nothing read here is used as a value before it has been confirmed, so that it does not matter if it is still written.
#pragma once

#include <cstdint>

namespace strata::cuda {

// Brings the line of an address into L2 and its page into the SM's address tables, which a prefetch does not wait for. Not into L1: what is
// still written by kernels in front is seen all the same. Volatile, or the assembler drops a load that nobody uses.
__device__ __forceinline__ void touch(const void* global) {
  const uintptr_t word = reinterpret_cast<uintptr_t>(global) & ~uintptr_t{3};
  asm volatile("{\n.reg .b32 unused;\nld.volatile.global.b32 unused, [%0];\n}\n" ::"l"(word) : "memory");
}

// A number as it is now: says where to touch, after a look at its range.
__device__ __forceinline__ int64_t guess(const int64_t* global) {
  int64_t value;
  asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(value) : "l"(global) : "memory");
  return value;
}
__device__ __forceinline__ int32_t guess(const int32_t* global) {
  int32_t value;
  asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

// Row `position` of a table of `rows` rows of cosines and sines, by 32 lanes.
__device__ __forceinline__ void touch_angles(const float* table, int64_t stride, int64_t rows, int32_t rotary, int64_t position, int lane) {
  constexpr int kLine = 32;  // numbers
  if (position >= 0 && position < rows && lane * kLine < rotary) touch(table + position * stride + lane * kLine);
}

}  // namespace strata::cuda
