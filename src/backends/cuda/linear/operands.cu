// Memory-bound, one pass: a thread reads 8 channels (16 bytes of bf16) and writes 8 e4m3 or 8 bf16 values; 16 threads share a scale.
// Floor for x [T, K]: 3 bytes a channel to quantise, 4 to quantise and dequantise, over memory bandwidth.
#include "backends/cuda/linear/operands.h"

#include "backends/cuda/device/quantize_activation.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = kQuantizeChannels;  // per thread

// Grid x: rows, because there may be more than 65535; grid y: sections of a row.
dim3 grid_of(int64_t rows, int64_t columns) {
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(columns, kChannels * kThreads)));
}

// Loads the `count` channels at p; the others are 0.
__device__ void load_channels(const Bf16* p, int count, float (&values)[kChannels]) {
  if (count == kChannels) {
    uint32_t words[4];
    load_words(reinterpret_cast<const uint8_t*>(p), words);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = bf16_low(words[i]);
      values[2 * i + 1] = bf16_high(words[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) values[i] = i < count ? to_float(p[i]) : 0.0f;
  }
}

__device__ void store_channels(Bf16* p, int count, const float (&values)[kChannels]) {
  if (count == kChannels) {
    const uint32_t words[4] = {pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]), pack_bf16(values[4], values[5]),
                               pack_bf16(values[6], values[7])};
    store_words(reinterpret_cast<uint8_t*>(p), words);
  } else {
    for (int i = 0; i < count; ++i) p[i] = to_bf16(values[i]);
  }
}

__device__ float decode(const uint32_t (&quantized)[2], int i) {
  return to_float(E4m3{static_cast<uint8_t>(quantized[i / 4] >> 8 * (i % 4))});
}

// Quantises one thread's channels of a token and stores them.
__device__ __forceinline__ void quantize_channels(float (&values)[kChannels], int64_t token, int k, int column, int count, bool ue8m0,
                                                  const QuantizedRows& out, Bf16* __restrict__ dequantized) {
  uint32_t quantized[2];
  const float scale = quantize_lanes(values, ue8m0, quantized);
  if (count == 0) return;
  if (dequantized != nullptr) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) values[i] = decode(quantized, i) * scale;
    store_channels(dequantized + token * k + column, count, values);
    return;
  }
  store_quantized(&out.values[token * k + column].bits, count, quantized);
  if (column % kActivationBlock == 0) out.scales[token * out.scale_token + column / kActivationBlock * out.scale_block] = scale;
}

// A CTA quantises a section of the channels of kTokens tokens. Several tokens are for 16-byte aligned rows: their loads are in flight
// together.
template <int kTokens>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const Bf16* x, int64_t x_stride, int64_t tokens, int k, bool ue8m0, QuantizedRows out, Bf16* __restrict__ dequantized) {
  start_early();
  const int64_t first = int64_t{blockIdx.x} * kTokens;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kChannels, count = min(max(k - column, 0), kChannels);
  float values[kTokens][kChannels];
  if constexpr (kTokens == 1) {
    load_channels(x + first * x_stride + column, count, values[0]);
  } else {
    uint4 words[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) words[i] = ptx::ld_once_if(count > 0 && first + i < tokens, x + (first + i) * x_stride + column);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) unpack_bf16(words[i], values[i]);
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (first + i < tokens) quantize_channels(values[i], first + i, k, column, count, ue8m0, out, dequantized);
  }
}

__global__ void __launch_bounds__(kThreads)
    dequantize_grouped_kernel(const E4m3* __restrict__ x, int64_t x_stride, int64_t x_group, const float* __restrict__ scales,
                              int64_t scale_stride, int64_t scale_group, int groups, int k, Bf16* __restrict__ out) {
  const int64_t row = blockIdx.x, token = row / groups, group = row - token * groups;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kChannels, count = min(k - column, kChannels);
  if (count <= 0) return;
  const uint8_t* const from = &x[token * x_stride + group * x_group + column].bits;
  uint32_t quantized[2] = {};
  if (count == kChannels) {
    load_words(from, quantized);
  } else {
    for (int i = 0; i < count; ++i) quantized[i / 4] |= uint32_t{from[i]} << 8 * (i % 4);
  }
  const float scale = scales[token * scale_stride + group * scale_group + column / kActivationBlock];
  float values[kChannels];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) values[i] = decode(quantized, i) * scale;
  store_channels(out + row * k + column, count, values);
}

__global__ void __launch_bounds__(kThreads) transpose_scales_kernel(const float* scales, int64_t scale_stride, int64_t scale_group,
                                                                    int64_t tokens, int64_t pitch, int blocks, float* __restrict__ out) {
  start_early();
  const int64_t token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int group = blockIdx.y / blocks, block = blockIdx.y - group * blocks;
  if (token < tokens) out[int64_t{blockIdx.y} * pitch + token] = scales[token * scale_stride + group * scale_group + block];
}

// Used only when loading a model: scale blocks of any size, one channel after the other.
__global__ void __launch_bounds__(kThreads)
    dequantize_weight_kernel(const E4m3* __restrict__ weight, const float* __restrict__ scales, int64_t scale_stride, int64_t block_n,
                             int64_t block_k, int64_t k, Bf16* __restrict__ out) {
  const int64_t row = blockIdx.x, first = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kChannels;
  const float* const scale = scales + row / block_n * scale_stride;
  for (int64_t column = first; column < min(first + kChannels, k); ++column) {
    out[row * k + column] = to_bf16(to_float(weight[row * k + column]) * scale[column / block_k]);
  }
}

void launch_quantize(const TensorView& x, ActivationFormat format, const QuantizedRows& out, Bf16* dequantized, bool overlap,
                     cudaStream_t stream) {
  const int64_t tokens = x.shape[0], k = x.shape[1];
  if (tokens == 0) return;
  constexpr int64_t kManyTokens = 512, kTokensPerCta = 4;
  const int64_t tokens_per_cta = tokens > kManyTokens && k % kChannels == 0 && rows_aligned(x) ? kTokensPerCta : 1;
  const LaunchConfig config({.grid = grid_of(ceil_div(tokens, tokens_per_cta), k), .block = dim3(kThreads)}, stream, overlap);
  const auto kernel = tokens_per_cta == 1 ? quantize_kernel<1> : quantize_kernel<kTokensPerCta>;
  check(cudaLaunchKernelEx(config.get(), kernel, const_cast<const Bf16*>(x.ptr<Bf16>()), x.stride[0], tokens, static_cast<int>(k),
                           format == ActivationFormat::fp8_ue8m0, out, dequantized),
        "quantize_kernel");
}

}  // namespace

void quantize_rows(const TensorView& x, ActivationFormat format, const QuantizedRows& out, bool overlap, cudaStream_t stream) {
  launch_quantize(x, format, out, nullptr, overlap, stream);
}

Implementation<ops::QuantizeRowsParams> quantize_rows_smxx() {
  return smxx_implementation<ops::QuantizeRowsParams>({.run = [](const ops::QuantizeRowsParams& p, const ExecutionContext& context) {
    quantize_rows(p.x, p.format, {p.values.ptr<E4m3>(), p.scale.ptr<float>(), p.scale.stride[0], 1}, launches_early(context.device),
                  native(context.stream));
  }});
}

void fake_quantize_rows(const TensorView& x, ActivationFormat format, Bf16* out, cudaStream_t stream) {
  launch_quantize(x, format, {}, out, /*overlap=*/false, stream);
}

void dequantize_grouped(const TensorView& x, const TensorView& x_scale, Bf16* out, cudaStream_t stream) {
  const int64_t tokens = x.shape[0], groups = x.shape[1], k = x.shape[2];
  if (tokens == 0) return;
  dequantize_grouped_kernel<<<grid_of(tokens * groups, k), kThreads, 0, stream>>>(
      x.ptr<E4m3>(), x.stride[0], x.stride[1], x_scale.ptr<float>(), x_scale.stride[0], x_scale.stride[1], static_cast<int>(groups),
      static_cast<int>(k), out);
  check_launch("dequantize_grouped_kernel");
}

void transpose_scales(const TensorView& x_scale, int64_t tokens, int64_t pitch, float* out, bool overlap, cudaStream_t stream) {
  if (tokens == 0) return;
  const int64_t groups = x_scale.shape[1], blocks = x_scale.shape[2];
  const dim3 grid(static_cast<unsigned>(ceil_div(tokens, kThreads)), static_cast<unsigned>(groups * blocks));
  const LaunchConfig config({.grid = grid, .block = dim3(kThreads)}, stream, overlap);
  check(cudaLaunchKernelEx(config.get(), transpose_scales_kernel, static_cast<const float*>(x_scale.ptr<float>()), x_scale.stride[0],
                           x_scale.stride[1], tokens, pitch, static_cast<int>(blocks), out),
        "transpose_scales_kernel");
}

void dequantize_weight(const LinearWeight& w, Bf16* out, cudaStream_t stream) {
  dequantize_weight_kernel<<<grid_of(w.groups * w.n, w.k), kThreads, 0, stream>>>(w.weight.ptr<E4m3>(), w.scale.ptr<float>(),
                                                                                  w.scale.stride[0], w.block_n, w.block_k, w.k, out);
  check_launch("dequantize_weight_kernel");
}

}  // namespace strata::cuda
