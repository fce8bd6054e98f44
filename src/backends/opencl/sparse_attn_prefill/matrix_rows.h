// The rows of a token in a bf16 matrix.
#pragma once

#include "backends/opencl/attention/bf16_rows.h"
#include "backends/opencl/attention/call.h"

namespace strata::opencl {

struct MatrixRows {
  const SparseAttnPrefillCall& call;
  const __global int32_t* indices;
  int length;

  int count() const { return length; }
  int index(int entry) const {
    const int row = entry < length ? indices[entry] : -1;
    return row < call.num_rows ? row : -1;
  }
  RowAddress address(int, int row) const {
    return {at<const uint8_t>(call.kv) + 2 * (row * call.kv_stride), nullptr, KvFormat::bf16, 1.0f};
  }
};
inline MatrixRows rows_of(const SparseAttnPrefillCall& call, int64_t token) {
  const int length = call.lengths == 0 ? call.width : at<const int32_t>(call.lengths)[token];
  return {call, at<const int32_t>(call.indices) + token * call.indices_stride, length};
}

}  // namespace strata::opencl
