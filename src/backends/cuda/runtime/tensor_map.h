// Tensor maps: what the copy engine reads or writes boxes of.
#pragma once

#include <cuda.h>

#include "strata/tensor.h"

namespace strata::cuda::sm90 {

// Of rows x columns elements, `stride` elements between rows; boxes of box_rows rows by 128 bytes, swizzled by 128 bytes. Outside of the
// matrix there are zeros. e4m3 or bf16. `name` is for errors. `fetch`: what the L2 cache reads at a time.
CUtensorMap tensor_map(const char* name, const void* data, DType dtype, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                       CUtensorMapL2promotion fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B);

// Of planes x rows x columns of bf16, elements between planes and between rows; boxes of box_rows rows of one plane by 128 bytes, swizzled
// by 128 bytes.
CUtensorMap tensor_map(const char* name, const void* data, int64_t planes, int64_t rows, int64_t columns, int64_t plane_stride,
                       int64_t row_stride, int box_rows);

// The same by column groups of 128 bytes: a box has box_groups of them one behind the other, each of box_rows rows. A multiple of 64
// columns.
CUtensorMap column_groups_map(const char* name, const void* data, int64_t planes, int64_t rows, int64_t columns, int64_t plane_stride,
                              int64_t row_stride, int box_rows, int box_groups);

}  // namespace strata::cuda::sm90
