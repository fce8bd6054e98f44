// Launches the kernel `insert`, for the ops that insert bf16 rows into a cache.
#pragma once

#include "backends/opencl/runtime/opencl_device.h"

namespace strata::opencl {

struct InsertRows {
  TensorView slots{};      // i64; negative: the row is skipped
  TensorView first{};      // bf16: a row's first columns
  TensorView second{};     // bf16: the following columns; may be absent
  TensorView positions{};  // for the rotation of the last columns; absent, like cos_sin, without rotation
  TensorView cos_sin{};
  PagedCache cache{};
  bool is_ue8m0 = false;
  bool is_divided = false;  // fp8_tensor: x / scale
};

void insert_rows(const InsertRows& p, const ExecutionContext& context);

}  // namespace strata::opencl
