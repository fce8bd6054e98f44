#include "backends/cuda/linear/call_views.h"

namespace strata::cuda {

TensorView as_grouped(const TensorView& v) {
  TensorView result = v;
  result.rank = 3;
  result.shape = {v.shape[0], 1, v.shape[1], 0};
  result.stride = {v.stride[0], v.stride[0], v.stride[1], 0};  // the group is as aligned as the rows
  return result;
}

LinearParams as_linear(const GroupedLinearParams& p) {
  const auto without_groups = [](const TensorView& v) {
    if (!v.present()) return v;
    TensorView result = v;
    result.rank = 2;
    result.shape = {v.shape[0], v.shape[2], 0, 0};
    result.stride = {v.stride[0], v.stride[2], 0, 0};
    return result;
  };
  return {.x = without_groups(p.x),
          .x_scale = without_groups(p.x_scale),
          .weight = p.weight,
          .y = without_groups(p.y),
          .activation = p.x.dtype == DType::e4m3 ? ActivationFormat::fp8_f32 : ActivationFormat::bf16};
}

LinearParams shapes_of(const LinearParams& p, int64_t count) {
  LinearParams sliced = p;
  sliced.x.shape[0] = sliced.x_scale.shape[0] = sliced.y.shape[0] = count;
  return sliced;
}

}  // namespace strata::cuda
