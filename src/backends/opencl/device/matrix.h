// The matrix engine of Intel's GPUs as one function, multiply_add: C [8, n] += A [8, 16] B [16, n], of bf16 values with fp32 sums. n is the
// sub-group size. Fragments are those of cl_intel_subgroup_matrix_multiply_accumulate. With STRATA_XMX_EMULATED shuffles multiply the same
// fragments, so that any device with sub-groups can run the same source.
#pragma once

#include <cstdint>

namespace strata::opencl {

constexpr int kMatrixRows = 8;    // of A and C
constexpr int kMatrixDepth = 16;  // columns of A, rows of B

// A: each component is a row. An item has one column with sub-groups of 16, and two with 8, the first in the lower half.
#if STRATA_SUBGROUP == 16
typedef short8 FragmentA;
typedef short ElementA;
#else
typedef int8 FragmentA;
typedef int ElementA;
#endif
// B: component i has rows 2i (lower half) and 2i + 1 of the item's column. C: each component is a row of the item's column.
typedef int8 FragmentB;
typedef float8 FragmentC;

}  // namespace strata::opencl

#ifndef STRATA_XMX_EMULATED
// The extension's built-in. llvm-spirv makes it an import, which the device's compiler resolves.
float8 intel_sub_group_bf16_bf16_matrix_mad_k16(strata::opencl::FragmentA a, int8 b, float8 c);
#endif

namespace strata::opencl {

#ifndef STRATA_XMX_EMULATED
inline FragmentC multiply_add(FragmentA a, FragmentB b, FragmentC c) { return intel_sub_group_bf16_bf16_matrix_mad_k16(a, b, c); }
#else
inline FragmentC multiply_add(FragmentA a, FragmentB b, FragmentC c) {
#pragma unroll
  for (int row = 0; row < kMatrixRows; ++row) {
    float sum = c[row];
#pragma unroll
    for (int i = 0; i < kMatrixDepth / 2; ++i) {
#if STRATA_SUBGROUP == 16
      const uint32_t low = (uint16_t)sub_group_shuffle(a[row], 2 * i), high = (uint16_t)sub_group_shuffle(a[row], 2 * i + 1);
#else
      const uint32_t pair = (uint32_t)sub_group_shuffle(a[row], i), low = pair & 0xFFFFu, high = pair >> 16;
#endif
      const uint32_t rows = (uint32_t)b[i];
      sum = fma(as_float(low << 16), as_float(rows << 16), sum);
      sum = fma(as_float(high << 16), as_float(rows & 0xFFFF0000u), sum);
    }
    c[row] = sum;
  }
  return c;
}
#endif

// Loads A: eight rows of 16 columns of bf16 values in local memory. The first column and the stride, in values, are even.
inline FragmentA load_a(const __local uint16_t* x, int stride) {
  const int lane = get_sub_group_local_id();
  FragmentA a;
#pragma unroll
  for (int row = 0; row < kMatrixRows; ++row) {
#if STRATA_SUBGROUP == 16
    a[row] = (short)x[row * stride + lane];
#else
    a[row] = ((const __local int*)(x + row * stride))[lane];
#endif
  }
  return a;
}
// Loads B from rows of x, so that A B is a product with x transposed. The first of the 16 columns is even.
inline FragmentB load_b_transposed(const __local uint16_t* x, int stride) {
  const __local int* row = (const __local int*)(x + (int)get_sub_group_local_id() * stride);
  FragmentB b;
#pragma unroll
  for (int i = 0; i < kMatrixDepth / 2; ++i) b[i] = row[i];
  return b;
}
// Loads B: 16 rows of x, n columns.
inline FragmentB load_b(const __local uint16_t* x, int stride) {
  const int lane = get_sub_group_local_id();
  FragmentB b;
#pragma unroll
  for (int i = 0; i < kMatrixDepth / 2; ++i) {
    b[i] = (int)((uint32_t)x[2 * i * stride + lane] | (uint32_t)x[(2 * i + 1) * stride + lane] << 16);
  }
  return b;
}

}  // namespace strata::opencl
