// y = x W^T of up to 128 quantised tokens: what the kernels of streamed.h and many_tiles.h have in common.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "backends/cuda/linear/sm90/config.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/runtime/launch_config.h"
#include "strata/ops/linear.h"

namespace strata::cuda::sm90 {

inline constexpr int kTokenProductMaxTokens = 128;
// Rows of tokens that a kernel is compiled for: tokens are the N of wgmma.
constexpr int token_product_rows(int64_t tokens) {
  return tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : tokens <= 64 ? 64 : 128;
}

struct TokenProduct {
  TensorView x;        // e4m3 [T, G, K], rows at multiples of 16 bytes
  TensorView x_scale;  // f32 [T, G, ceil(K / 128)], any strides
  const LinearWeight& weight;
  TensorView y;          // [T, G, n], bf16 or f32; or e4m3
  TensorView y_scale{};  // e4m3 y only: f32 [T, G, n / 128]
  bool ue8m0 = false;
};

// Why the kernels cannot take a row-major e4m3 weight, or x if that is e4m3; empty if they can.
std::string token_product_refusal(const LinearWeight& weight, const TensorView& x);

struct TokenProductArgs {
  const float* x_scale;
  int64_t x_scale_token, x_scale_group, x_scale_block;  // elements between scales of two tokens, groups, blocks
  const float* w_scale;                                 // one per weight_block_rows x 128 block
  int64_t w_scale_stride;
  int weight_block_rows;
  void* y;                    // bf16 or f32
  int64_t y_stride, y_group;  // elements
  bool y_f32;
  int num_tokens;
  int n, num_blocks;  // features per group; blocks of kLinearBlock channels

  TokenProductArgs() = default;
  explicit TokenProductArgs(const TokenProduct& p);
};

// Boxes of one block of channels: tile_rows features of all groups, and a group's tokens. For x two channels are one element.
struct TokenProductMaps {
  CUtensorMap weight, x;  // of two dimensions; of three, the last is groups
  TokenProductMaps(const TokenProduct& p, int tile_rows);
};

// Launches a kernel with the maps and arguments. The kernel may start before the preceding kernel has finished.
template <class Args>
void launch_token_product(const char* name, const void* kernel, const LaunchShape& shape, TokenProductMaps maps, Args args,
                          const Capabilities& device, cudaStream_t stream) {
  allow_shared_bytes(kernel, static_cast<size_t>(device.max_shared_bytes));
  all_shared_memory(kernel);
  const LaunchConfig config(shape, stream, /*early=*/true);
  void* arguments[] = {&maps.weight, &maps.x, &args};
  check(cudaLaunchKernelExC(config.get(), kernel, arguments), name);
}

}  // namespace strata::cuda::sm90
