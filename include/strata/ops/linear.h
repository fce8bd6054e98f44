// Linear layers: y = x W^T, V4 specification 5.1, 5.2 and 15 (step 3, grouped); MLA specification 3.1.
#pragma once

#include <functional>
#include <string>

#include "strata/activation_format.h"
#include "strata/tensor.h"

namespace strata {

// A weight matrix as a layer stores it. Either `weight` (row-major) or `packed` is present.
struct LinearWeight {
  int64_t n = 0;        // output features of one group
  int64_t k = 0;        // input features of one group
  int64_t groups = 1;   // grouped linear: rows [g*n, (g+1)*n) of `weight` belong to group g
  TensorView weight{};  // bf16 or e4m3 [groups*n, k], row-major contiguous; absent when packed
  TensorView scale{};   // e4m3 only: f32 [ceil(groups*n / block_n), ceil(k / block_k)], multiplies
  int64_t block_n = 128;
  int64_t block_k = 128;
  bool power_of_two_scales = false;  // e4m3 only: every scale is one (F8_E8M0 has no others), so that codes times scales are bf16 exactly
  bool from_e4m3 = false;  // bf16 only: codes times scales, rounded unless these are powers of two, of a matrix that may be kept as e4m3
  TensorView packed{};     // u8 [bytes], in the private layout of the implementation `packing`; absent when not packed
  std::string packing{};   // name of the implementation that packed it; empty when not packed
  // The products of this weight run concurrently with other work, so they are planned for a part of the device. That decides in which order
  // sums are taken: the same weight gives the same bits, whatever runs next to it.
  bool shares_device = false;
  std::string name{};  // of the matrix, for people: "wq_a + wkv". Never changes a result; may be empty
};

// y[t, o] = sum_i x[t, i] * W[o, i], fp32 accumulation, rounded once when y is bf16.
// With an fp8 activation format: y[t, o] = sum_g sx[t, g] * sw[o, g] * sum_{i in g} xq[t, i] * wq[o, i]  (5.2). x is quantised here, or
// is given as codes with their scales, for what several products take.
// Errors: invalid_argument for shapes, dtypes, devices, strides, addresses; unsupported when no implementation takes the weight's layout.
struct LinearParams {
  TensorView x{};                        // bf16 [T, K]; or e4m3 [T, K] with x_scale. Rows contiguous, any row stride
  TensorView x_scale{};                  // e4m3 x only: f32 [T, ceil(K / 128)], rows contiguous, any row stride; fp8_ue8m0: powers of two
  const LinearWeight* weight = nullptr;  // groups == 1
  TensorView y{};                        // bf16 or f32 [T, N], rows contiguous, any row stride
  ActivationFormat activation = ActivationFormat::bf16;  // of an e4m3 x: the fp8 format of its values
};

// y[t, g, o] = sum_i x[t, g, i] * W[g*n + o, i]: the einsum "bhr,hdr->bhd" of the output path (V4 15, step 3).
struct GroupedLinearParams {
  TensorView x{};                        // bf16 [T, G, K]; or e4m3 [T, G, K] codes with x_scale; last dimension contiguous
  TensorView x_scale{};                  // e4m3 x only: f32 [T, G, K/128]; absent for bf16 x
  const LinearWeight* weight = nullptr;  // groups == G
  // bf16 [T, G, N], last dimension contiguous; or, contiguous, e4m3 [T, G, N], N a multiple of 128: what bf16 would be,
  // quantised as linear quantises x.
  TensorView y{};
  TensorView y_scale{};                                // e4m3 y only: f32 [T, G, N / 128], contiguous
  ActivationFormat y_format = ActivationFormat::bf16;  // e4m3 y only: the fp8 format
};

// Load-time conversion of a row-major weight into an implementation's own layout.
// A layer asks `linear` for every form that a matrix may have (FP8 or bf16; row-major, or packed by one of OpSet::weight_packings) at one
// token and at many, and loads it in the form whose slower answer comes first in the op's list. So an implementation of the caller's that
// takes row-major weights of few tokens only keeps the built-in ones of many tokens from their packings: let it say no where it is not
// meant, and to weight->packed unless weight->packing is its own name.
struct WeightPacking {
  std::string name;  // of the linear implementation that reads it
  // Bytes of the packed form; 0 when this packing does not take the weight.
  std::function<int64_t(const LinearWeight&, const class Device&)> packed_bytes;
  // Writes packed_bytes bytes at dst (device memory).
  std::function<void(const LinearWeight&, class Device&, void* dst)> pack;
};

}  // namespace strata
