// Preparation of the operands of a linear layer: quantising activations, and dequantising for a product in bf16. Everything is enqueued on
// the stream; views are on the current device.
#pragma once

#include <cuda_runtime_api.h>

#include "contracts/quantize_rows.h"
#include "strata/op.h"
#include "strata/ops/linear.h"

namespace strata::cuda {

// Target of the quantised x [T, K]: rows of K e4m3 values without gaps, and one fp32 scale per token and 128 channels.
struct QuantizedRows {
  E4m3* values = nullptr;
  float* scales = nullptr;
  int64_t scale_token = 0, scale_block = 0;  // elements between scales of two tokens, and of two quantisation blocks of a token
};
// x: bf16 [T, K], any row stride. Byte-equal to strata::quantize_activation. A kernel launched after it with programmatic serialization may
// start at once. overlap (sm_90 only): this kernel may start before the preceding kernel has finished.
void quantize_rows(const TensorView& x, ActivationFormat format, const QuantizedRows& out, bool overlap, cudaStream_t stream);

// The same for a row's quantisation blocks in order: "cuda/smxx" of the quantised output of grouped_linear.
Implementation<ops::QuantizeRowsParams> quantize_rows_smxx();

// out[t, 0..K) = x quantised and dequantised, rounded to bf16 (exact when scales are powers of two); rows without gaps.
void fake_quantize_rows(const TensorView& x, ActivationFormat format, Bf16* out, cudaStream_t stream);

// out [T, G, K] without gaps = e4m3 values times scales. x, x_scale: as in GroupedLinearParams, any K.
void dequantize_grouped(const TensorView& x, const TensorView& x_scale, Bf16* out, cudaStream_t stream);

// out[g][block][t] = x_scale[t, g, block] for t < tokens, with `pitch` elements between blocks: the layout that products of many tokens
// read. overlap: as for quantize_rows.
void transpose_scales(const TensorView& x_scale, int64_t tokens, int64_t pitch, float* out, bool overlap, cudaStream_t stream);

// The e4m3 weight as bf16 rows without gaps.
void dequantize_weight(const LinearWeight& weight, Bf16* out, cudaStream_t stream);

}  // namespace strata::cuda
