// Prefetching what a kernel will read while the preceding kernel may still run, between launch and wait (start_early). A small kernel is a
// chain of dependent reads; hits in L2 and in the SM's TLB shorten it. Values read here are not used before they have been confirmed, so it
// does not matter if they are still being written.
#pragma once

#include <cstdint>

namespace strata::cuda {

// Loads the line of an address into L2 and its page into the SM's TLB, which a prefetch does not wait for. Not into L1: later writes of
// preceding kernels are still seen. Volatile, because the assembler drops a load without a use.
__device__ __forceinline__ void touch(const void* global) {
  const uintptr_t word = reinterpret_cast<uintptr_t>(global) & ~uintptr_t{3};
  asm volatile("{\n.reg .b32 unused;\nld.volatile.global.b32 unused, [%0];\n}\n" ::"l"(word) : "memory");
}

// The present value of a number: for an address to touch, after a range check.
__device__ __forceinline__ int64_t speculative_load(const int64_t* global) {
  int64_t value;
  asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(value) : "l"(global) : "memory");
  return value;
}
__device__ __forceinline__ int32_t speculative_load(const int32_t* global) {
  int32_t value;
  asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

// Touches row `position` of a table of `rows` rows of cosines and sines, by 32 lanes.
__device__ __forceinline__ void touch_angles(const float* table, int64_t stride, int64_t rows, int32_t rotary, int64_t position, int lane) {
  constexpr int kLine = 32;  // numbers
  if (position >= 0 && position < rows && lane * kLine < rotary) touch(table + position * stride + lane * kLine);
}

}  // namespace strata::cuda
