// What is done to the operands of a linear layer before the product: quantising activations, and dequantising for a product in bf16.
// Everything is enqueued on the stream; views are on the current device.
#pragma once

#include <cuda_runtime_api.h>

#include "contracts/quantize_rows.h"
#include "strata/op.h"
#include "strata/ops/linear.h"

namespace strata::cuda {

// Where the codes of x [T, K] go: rows of K codes without gaps, and one fp32 scale a token and 128 channels.
struct QuantizedRows {
  E4m3* codes = nullptr;
  float* scales = nullptr;
  int64_t scale_token = 0, scale_block = 0;  // elements between the scales of two tokens, of two blocks of a token
};
// x: bf16 [T, K], any row stride. Byte-equal to strata::quantize_activation. A kernel launched behind it with programmatic serialization
// may begin at once. overlap (sm_90 only): this one may begin before the kernel in front has ended.
void quantize_rows(const TensorView& x, ActivationFormat format, const QuantizedRows& out, bool overlap, cudaStream_t stream);

// The same of a row's blocks in order: "cuda/smxx" of the quantised output of grouped_linear.
Implementation<ops::QuantizeRowsParams> quantize_rows_smxx();

// out[t, 0..K) = x quantised and dequantised, rounded to bf16 (exact when scales are powers of two); rows without gaps.
void fake_quantize_rows(const TensorView& x, ActivationFormat format, Bf16* out, cudaStream_t stream);

// out [T, G, K] without gaps = codes times scales. x, x_scale: as in GroupedLinearParams, K any number.
void dequantize_grouped(const TensorView& x, const TensorView& x_scale, Bf16* out, cudaStream_t stream);

// out[g][block][t] = x_scale[t, g, block], for t < tokens, `pitch` elements between blocks: what products of many tokens read. overlap: as
// for quantize_rows.
void transpose_scales(const TensorView& x_scale, int64_t tokens, int64_t pitch, float* out, bool overlap, cudaStream_t stream);

// The e4m3 weight as bf16 rows without gaps.
void dequantize_weight(const LinearWeight& weight, Bf16* out, cudaStream_t stream);

}  // namespace strata::cuda
