// Shared by both producers' loops: 16-byte units of cache rows, their positions in shared memory, and their conversion to fp16.
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
// The largest |bits| of the bf16 values, which is monotonic in their magnitude.
__device__ __forceinline__ uint32_t max_bf16_bits(uint4 v) {
  constexpr uint32_t kMagnitude = 0x7FFF7FFFu;
  const uint32_t m = __vmaxu2(__vmaxu2(v.x & kMagnitude, v.y & kMagnitude), __vmaxu2(v.z & kMagnitude, v.w & kMagnitude));
  return max(m & 0xFFFFu, m >> 16);
}
// Exponent by which queries with this largest magnitude are divided: their largest is then in [2^14, 2^15), so fp16 does not overflow.
__device__ __forceinline__ int query_exponent(uint32_t largest_bits) { return max(static_cast<int>(largest_bits >> 7) - 127 - 14, -100); }

// A producer thread's position in a tile: a row, and 16 of the 64 bytes of each quantisation block. Everything follows from `values`, so
// that nothing else is kept in registers.
struct ThreadPosition {
  uint32_t values;   // byte offset of its first unit of values in a chunk; the second is at values ^ 16
  uint32_t rotated;  // byte offset of its first unit of rotary values; the second is at rotated ^ 64

  // Odd rows take the two units of rotary values in the other order, against bank conflicts (producer.cuh).
  __device__ __forceinline__ ThreadPosition(int row, int quarter)
      : values(unit_offset(row, 2 * quarter)), rotated(unit_offset(row, quarter + 4 * (row & 1))) {}
  __device__ __forceinline__ int row() const { return static_cast<int>(values / 128); }
  __device__ __forceinline__ int quarter() const { return static_cast<int>((values / 16 ^ values / 128) % 8 / 2); }
  // Makes the compiler recompute what follows from the position, instead of keeping it through a loop.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(values), "+r"(rotated)); }
  __device__ __forceinline__ bool first_of_warp() const { return values % 1024 == 0; }
};

__device__ __forceinline__ __half2 as_half2(uint32_t pair) { return *reinterpret_cast<const __half2*>(&pair); }

// Eight e4m3 values as fp16.
__device__ __forceinline__ uint4 e4m3_to_f16(uint32_t w0, uint32_t w1) {
  const uint2 first = ptx::cvt_f16x4_e4m3x4(w0), second = ptx::cvt_f16x4_e4m3x4(w1);
  return {first.x, first.y, second.x, second.y};
}
// Eight e4m3 values times a scale, as fp16.
__device__ __forceinline__ uint4 scaled_e4m3(uint32_t w0, uint32_t w1, __half2 scale) {
  const uint4 v = e4m3_to_f16(w0, w1);
  return {mul_f16x2(v.x, scale), mul_f16x2(v.y, scale), mul_f16x2(v.z, scale), mul_f16x2(v.w, scale)};
}
// As large as e4m3 values times scales become, and small enough that a mean of keys with rounded weights is finite.
constexpr float kLargestKey = 448.0f * 128.0f;

}  // namespace strata::cuda::sparse_decode
