// The launcher of the kernel `insert`, for the ops that put bf16 rows into a cache.
#pragma once

#include "backends/opencl/runtime/opencl_device.h"

namespace strata::opencl {

struct InsertRows {
  TensorView slots{};      // i64; negative: none
  TensorView first{};      // bf16, a row's first columns
  TensorView second{};     // bf16, the columns that follow; absent: none
  TensorView positions{};  // of the rotation of the last columns; absent with cos_sin: none
  TensorView cos_sin{};
  PagedCache cache{};
  bool is_ue8m0 = false;
  bool is_divided = false;  // fp8_tensor: x / scale
};

void insert_rows(const InsertRows& p, const ExecutionContext& context);

}  // namespace strata::opencl
