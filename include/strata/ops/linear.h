// Linear layers: y = x W^T. V4 specification 5.1, 5.2 and 15 (step 3, grouped); MLA specification 3.1.
#pragma once

#include <functional>
#include <string>

#include "strata/activation_format.h"
#include "strata/tensor.h"

namespace strata {

// A weight matrix as a layer stores it. Exactly one of `weight` (row-major) and `packed` is present.
struct LinearWeight {
  int64_t n = 0;                     // output features per group
  int64_t k = 0;                     // input features per group
  int64_t groups = 1;                // grouped linear: rows [g*n, (g+1)*n) of `weight` belong to group g
  TensorView weight{};               // bf16 or e4m3 [groups*n, k], row-major contiguous; absent when packed
  TensorView scale{};                // e4m3 only: f32 [ceil(groups*n / block_n), ceil(k / block_k)], factors of the values
  int64_t block_n = 128;             // rows of `weight` per scale
  int64_t block_k = 128;             // columns of `weight` per scale
  bool power_of_two_scales = false;  // e4m3 only: all scales are powers of two (F8_E8M0), so values times scales are exact in bf16
  bool from_e4m3 = false;            // bf16 only: dequantised e4m3, rounded unless scales are powers of two; the matrix may be kept as e4m3
  TensorView packed{};               // u8 [bytes], in the private layout of the implementation `packing`; absent when not packed
  std::string packing{};             // name of the implementation that packed it; empty when not packed
  // Products of this weight run concurrently with other work, so they are planned for a part of the device. This fixes the order of sums:
  // the same weight gives the same bits, whether or not other work runs.
  bool shares_device = false;
  std::string name{};  // for messages: "wq_a + wkv". Never changes a result; may be empty
};

// linear: y[t, o] = sum_i x[t, i] * W[o, i], accumulated in fp32, rounded once when y is bf16.
// With an fp8 activation format: y[t, o] = sum_g sx[t, g] * sw[o, g] * sum_{i in g} xq[t, i] * wq[o, i] (V4 5.2). The op quantises x. An x
// that several products read may be given already quantised, with its scales.
// Errors: invalid_argument for shapes, dtypes, devices, strides, addresses; unsupported when no implementation takes the weight's layout.
struct LinearParams {
  TensorView x{};                        // bf16 [T, K]; or e4m3 [T, K] with x_scale. Rows contiguous, any row stride
  TensorView x_scale{};                  // e4m3 x only: f32 [T, ceil(K / 128)], rows contiguous, any row stride; fp8_ue8m0: powers of two
  const LinearWeight* weight = nullptr;  // groups == 1
  TensorView y{};                        // bf16 or f32 [T, N], rows contiguous, any row stride
  // bf16 x: the op quantises x in this format, bf16: not at all. e4m3 x: its fp8 format; bf16 is refused.
  ActivationFormat activation = ActivationFormat::bf16;
};

// grouped_linear: y[t, g, o] = sum_i x[t, g, i] * W[g*n + o, i]. The einsum "bhr,hdr->bhd" of the output path (V4 15, step 3). Errors: as
// of linear.
struct GroupedLinearParams {
  TensorView x{};                        // bf16 [T, G, K]; or e4m3 [T, G, K] with x_scale; last dimension contiguous
  TensorView x_scale{};                  // e4m3 x only: f32 [T, G, K/128]; absent for bf16 x
  const LinearWeight* weight = nullptr;  // groups == G
  // bf16 [T, G, N], last dimension contiguous. Or e4m3 [T, G, N], contiguous, N a multiple of 128: the bf16 result, quantised as linear
  // quantises x.
  TensorView y{};
  TensorView y_scale{};                                // e4m3 y only: f32 [T, G, N / 128], contiguous
  ActivationFormat y_format = ActivationFormat::bf16;  // e4m3 y only: the fp8 format
};

// Load-time conversion of a row-major weight into an implementation's private layout.
// For each form of a matrix (FP8 or bf16; row-major, or packed by one of OpSet::weight_packings) a layer selects an implementation of
// `linear` at one token and at many tokens. It loads the form whose slower implementation of the two comes first in the op's list.
// A caller's implementation that takes row-major weights of few tokens only can therefore keep a matrix from being packed for the built-in
// implementations of many tokens. It should refuse calls that it is not meant for, and weight->packed unless weight->packing is its own
// name.
struct WeightPacking {
  std::string name;  // name of the linear implementation that reads this layout
  // Bytes of the packed weight; 0 when this packing does not take the weight.
  std::function<int64_t(const LinearWeight&, const class Device&)> packed_bytes;
  // Writes packed_bytes bytes to dst in device memory.
  std::function<void(const LinearWeight&, class Device&, void* dst)> pack;
};

}  // namespace strata
