// Tensor maps: descriptors of the boxes that TMA reads or writes.
#pragma once

#include <cuda.h>

#include "strata/tensor.h"

namespace strata::cuda::sm90 {

// For rows x columns elements, `stride` elements between rows; boxes of box_rows rows by 128 bytes, swizzled by 128 bytes. Outside the
// matrix elements read as zero. e4m3 or bf16. `name` is for errors. `fetch`: L2 promotion size.
CUtensorMap tensor_map(const char* name, const void* data, DType dtype, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                       CUtensorMapL2promotion fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B);

// For planes x rows x columns of bf16, strides in elements between planes and rows; boxes of box_rows rows of one plane by 128 bytes,
// swizzled by 128 bytes.
CUtensorMap tensor_map(const char* name, const void* data, int64_t planes, int64_t rows, int64_t columns, int64_t plane_stride,
                       int64_t row_stride, int box_rows);

// The same by column groups of 128 bytes: a box has box_groups consecutive groups, each of box_rows rows. Columns are a multiple of 64.
CUtensorMap column_groups_map(const char* name, const void* data, int64_t planes, int64_t rows, int64_t columns, int64_t plane_stride,
                              int64_t row_stride, int box_rows, int box_groups);

}  // namespace strata::cuda::sm90
