// Dequantises FP8 operands, which is how the CPU computes the FP8 linear layers of V4 5.2. An e4m3 value has four significant bits, so
// value * 2^k is exact in bf16, and a bf16 product over such operands is the FP8 product. Scales that are not powers of two (fp8_f32
// activations, fp32 weight scales) cost bf16 operands one rounding of relative size 2^-9. So "cpu/simd" has fp32 operands, and "cpu/amx"
// applies such scales to fp32 sums.
#pragma once

#include "backends/cpu/cpu_device.h"
#include "formats/quantize.h"
#include "strata/ops/linear.h"

namespace strata::cpu {

// out[0, k) = the row x quantised in groups of 128 and dequantised. k is any positive number. out may be x.
void fake_quantize_row(const Device& device, const Bf16* x, int64_t k, ActivationFormat format, Bf16* out);
void fake_quantize_row(const Device& device, const Bf16* x, int64_t k, ActivationFormat format, float* out);

// quantized[0, k) = the row x quantised in groups of 128 with scales scale[0, k / 128). k is a multiple of 128.
void quantize_row(const Device& device, const Bf16* x, int64_t k, ActivationFormat format, E4m3* quantized, float* scale);

// out[0, k) = quantized[i] * scale[i / block].
void dequantize_row(const Device& device, const E4m3* quantized, const float* scale, int64_t k, int64_t block, Bf16* out);
void dequantize_row(const Device& device, const E4m3* quantized, const float* scale, int64_t k, int64_t block, float* out);

// out[0, n) = channels [first, first + n) of token t as a linear layer multiplies them. A bf16 x [T, K] is taken as it is, or quantised and
// dequantised; an e4m3 x is dequantised with x_scale [T, ceil(K / 128)]. `first` is a multiple of 128.
template <class T>
void load_activations(const Device& device, const TensorView& x, const TensorView& x_scale, ActivationFormat format, int64_t t,
                      int64_t first, int64_t n, T* out) {
  if (x.dtype == DType::e4m3) {
    dequantize_row(device, x.row<E4m3>(t) + first, x_scale.row<float>(t) + first / kActivationBlock, n, kActivationBlock, out);
  } else {
    fake_quantize_row(device, x.row<Bf16>(t) + first, n, format, out);
  }
}

// values[0, n) = the e4m3 values of the same channels, unscaled; scales[0, ceil(n / 128)) = their scales. x is e4m3, or bf16 that is
// quantised to `format`, an fp8 one.
void load_unscaled_activations(const Device& device, const TensorView& x, const TensorView& x_scale, ActivationFormat format, int64_t t,
                               int64_t first, int64_t n, Bf16* values, float* scales);

// out[0, n) = columns [first, first + n) of row `row` of the row-major bf16 or e4m3 matrix.
void load_weight_columns(const Device& device, const LinearWeight& weight, int64_t row, int64_t first, int64_t n, Bf16* out);
void load_weight_columns(const Device& device, const LinearWeight& weight, int64_t row, int64_t first, int64_t n, float* out);

}  // namespace strata::cpu
