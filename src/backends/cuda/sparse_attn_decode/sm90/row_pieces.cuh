// What both of the producers' loops are made of: 16-byte pieces of cache rows, their places in shared memory, and fp16 from them.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/shared_memory.cuh"

namespace strata::cuda::sparse_decode {

__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, __half2 b) {
  const __half2 product = __hmul2(*reinterpret_cast<const __half2*>(&a), b);
  return *reinterpret_cast<const uint32_t*>(&product);
}

// A bf16 pair times `factor`, a power of two, as fp16.
__device__ __forceinline__ uint32_t bf16x2_to_f16x2(uint32_t pair, float factor) {
  return ptx::cvt_f16x2(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xFFFF0000u) * factor);
}
__device__ __forceinline__ uint4 bf16_to_f16(uint4 v, float factor) {
  return {bf16x2_to_f16x2(v.x, factor), bf16x2_to_f16x2(v.y, factor), bf16x2_to_f16x2(v.z, factor), bf16x2_to_f16x2(v.w, factor)};
}
// The largest |bits| of bf16 values: monotonous in their magnitude.
__device__ __forceinline__ uint32_t max_bf16_bits(uint4 v) {
  constexpr uint32_t kMagnitude = 0x7FFF7FFFu;
  const uint32_t m = __vmaxu2(__vmaxu2(v.x & kMagnitude, v.y & kMagnitude), __vmaxu2(v.z & kMagnitude, v.w & kMagnitude));
  return max(m & 0xFFFFu, m >> 16);
}
// Queries times 2^-exponent have their largest, of these bits, in [2^14, 2^15): nothing overflows fp16.
__device__ __forceinline__ int query_exponent(uint32_t largest_bits) { return max(static_cast<int>(largest_bits >> 7) - 127 - 14, -100); }

// A producer thread's place in a tile: a row, and 16 of the 64 bytes of each block of codes. All of it follows from `codes`, so that
// nothing more is kept in registers.
struct Place {
  uint32_t codes;    // byte offset of its first unit of values in a chunk; the second is at codes ^ 16
  uint32_t rotated;  // and of its first unit of rotated lanes; the second is at rotated ^ 64

  // Odd rows take the two units of rotated lanes in the other order: see the header.
  __device__ __forceinline__ Place(int row, int quarter)
      : codes(unit_offset(row, 2 * quarter)), rotated(unit_offset(row, quarter + 4 * (row & 1))) {}
  __device__ __forceinline__ int row() const { return static_cast<int>(codes / 128); }
  __device__ __forceinline__ int quarter() const { return static_cast<int>((codes / 16 ^ codes / 128) % 8 / 2); }
  // What follows from it is computed again instead of being kept through a loop.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(codes), "+r"(rotated)); }
  __device__ __forceinline__ bool first_of_warp() const { return codes % 1024 == 0; }
};

__device__ __forceinline__ __half2 as_half2(uint32_t pair) { return *reinterpret_cast<const __half2*>(&pair); }

// Eight e4m3 codes as fp16.
__device__ __forceinline__ uint4 codes_f16(uint32_t w0, uint32_t w1) {
  const uint2 first = ptx::cvt_f16x4_e4m3x4(w0), second = ptx::cvt_f16x4_e4m3x4(w1);
  return {first.x, first.y, second.x, second.y};
}
// And times a scale.
__device__ __forceinline__ uint4 scaled_codes(uint32_t w0, uint32_t w1, __half2 scale) {
  const uint4 v = codes_f16(w0, w1);
  return {mul_f16x2(v.x, scale), mul_f16x2(v.y, scale), mul_f16x2(v.z, scale), mul_f16x2(v.w, scale)};
}
// As large as codes become, and small enough that a mean of keys with rounded weights is finite too.
constexpr float kLargestKey = 448.0f * 128.0f;

}  // namespace strata::cuda::sparse_decode
