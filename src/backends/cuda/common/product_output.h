// Where a linear layer's kernel puts y [T, G, n], bf16 or f32: four members of its arguments, `void* y; int64_t y_stride, y_group; bool
// y_f32;`, strides of tokens and of groups in elements.
#pragma once

#include "formats/bf16.h"
#include "formats/macros.h"
#include "strata/tensor.h"

namespace strata::cuda {

template <class Args>
void set_output(Args& a, const TensorView& y) {
  a.y = y.data;
  a.y_stride = y.stride[0];
  a.y_group = y.stride[1];
  a.y_f32 = y.dtype == DType::f32;
}

template <class Args>
STRATA_HOST_DEVICE void store_output(const Args& a, int group, int token, int feature, float sum) {
  const int64_t at = token * a.y_stride + group * a.y_group + feature;
  if (a.y_f32) {
    static_cast<float*>(a.y)[at] = sum;
  } else {
    static_cast<Bf16*>(a.y)[at] = to_bf16(sum);
  }
}

}  // namespace strata::cuda
