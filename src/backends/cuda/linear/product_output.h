// Where a linear layer's kernel writes y [T, G, n], bf16 or f32: four members of its arguments, `void* y; int64_t y_stride, y_group; bool
// y_f32;`, with strides of tokens and of groups in elements.
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

// Where a kernel writes the scales of a quantised y: three more members, `float* y_scale; int64_t y_scale_stride, y_scale_group; bool
// ue8m0;`. Absent: y is not quantised.
template <class Args>
void set_output_scales(Args& a, const TensorView& scale, bool ue8m0) {
  if (!scale.present()) return;
  a.y_scale = scale.ptr<float>();
  a.y_scale_stride = scale.stride[0];
  a.y_scale_group = scale.stride[1];
  a.ue8m0 = ue8m0;
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
