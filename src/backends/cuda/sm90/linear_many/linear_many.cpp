// "cuda/sm90_many": FP8 linear layers for many tokens: the quantiser of x, and the product of kernel.cuh.
#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/common/check.h"
#include "backends/cuda/common/cuda_device.h"
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/cublaslt/matmul.h"
#include "backends/cuda/linear_impls.h"
#include "backends/cuda/sm90/linear/tensor_map.h"
#include "backends/cuda/sm90/linear_many/config.h"
#include "backends/cuda/smxx/linear/operands.h"
#include "core/arena.h"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tiles of a cluster.
int64_t token_tiles(int64_t tokens) { return ceil_div(tokens, sm90::kManyTokens); }
int64_t feature_pairs(int64_t n) { return ceil_div(n, sm90::kManyCluster * sm90::kManyFeatures); }

Support supports(const LinearParams& p, const Capabilities& device) {
  if (const Support on_device = needs_sm90(device); !on_device) return on_device;
  const LinearWeight* const w = p.weight;
  if (w == nullptr) return Support::no("no weight");
  if (!w->weight.present() || w->weight.dtype != DType::e4m3) return Support::no("needs a row-major e4m3 weight");
  if (p.activation == ActivationFormat::bf16) return Support::no("needs fp8 activations");
  if (w->block_n % sm90::kManyFeatures != 0 || w->block_k != sm90::kManyBlock) {
    return Support::no(fmt::format("needs weight scales of (a multiple of) 128 x 128 blocks, has {} x {}", w->block_n, w->block_k));
  }
  if (w->k % 16 != 0) return Support::no(fmt::format("needs a multiple of 16 input features, got {}", w->k));
  if (p.y.dtype != DType::bf16 || p.y.stride[0] % 8 != 0) return Support::no("needs bf16 rows of y at multiples of 16 bytes");
  // At 512 tokens cuBLASLt's smaller tiles are faster, or as fast.
  const int64_t tokens = p.x.shape[0], clusters = device.num_sms / sm90::kManyCluster;
  if (tokens <= 512 || token_tiles(tokens) * feature_pairs(w->n) < clusters) {
    return Support::no(fmt::format("{} tokens of {} features are too few for tiles of {} by {}", tokens, w->n, sm90::kManyTokens,
                                   sm90::kManyCluster * sm90::kManyFeatures));
  }
  return Support::yes();
}

struct Quantized {
  TensorView codes;   // e4m3 [T, K]
  TensorView scales;  // f32 [blocks of 128 channels, T to a whole number of tiles]
};
Quantized quantized(Arena& arena, const TensorView& x) {
  const int64_t tokens = x.shape[0], k = x.shape[1], whole = token_tiles(tokens) * sm90::kManyTokens;
  return {arena.tensor(DType::e4m3, {tokens, k}), arena.tensor(DType::f32, {ceil_div(k, kActivationBlock), whole})};
}

size_t workspace_bytes(const LinearParams& p, const Capabilities&) {
  Arena arena(p.x.device);
  quantized(arena, p.x);
  // Fewer tokens of the layer are cuBLASLt's, and their last ones our other kernel's. A plan measured for the most tokens must do for them.
  arena.tensor(DType::u8, {static_cast<int64_t>(CublasLt::kWorkspaceBytes)});
  TensorView few = p.x;
  few.shape[0] = 4;
  quantized(arena, few);
  return arena.peak();
}

void run(const LinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  const int64_t tokens = p.x.shape[0], k = p.x.shape[1], n = p.weight->n;
  Arena arena(p.x.device, context.workspace);
  const Quantized q = quantized(arena, p.x);
  cudaStream_t stream = native(context.stream);
  quantize_rows(p.x, p.activation,
                {.codes = q.codes.ptr<E4m3>(), .scales = q.scales.ptr<float>(), .scale_token = 1, .scale_block = q.scales.stride[0]},
                /*overlap=*/true, stream);

  sm90::ManyArgs a{};
  a.x_scale = q.scales.ptr<float>();
  a.x_scale_stride = q.scales.stride[0];
  a.w_scale = p.weight->scale.ptr<float>();
  a.w_scale_stride = p.weight->scale.stride[0];
  a.weight_block_rows = static_cast<int>(p.weight->block_n);
  a.num_features = static_cast<int>(n);
  a.num_blocks = static_cast<int>(ceil_div(k, sm90::kManyBlock));
  a.token_tiles = static_cast<int>(token_tiles(tokens));
  a.feature_pairs = static_cast<int>(feature_pairs(n));
  const CUtensorMap x = sm90::tensor_map("x", q.codes.data, DType::e4m3, tokens, k, k, sm90::kManyTokens / sm90::kManyCluster);
  const CUtensorMap w = sm90::tensor_map("weight", p.weight->weight.data, DType::e4m3, n, k, k, sm90::kManyFeatures);
  const CUtensorMap y = sm90::tensor_map("y", p.y.data, DType::bf16, tokens, n, p.y.stride[0], 128);

  const void* const kernel = sm90::linear_many_kernel();
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sm90::ManyShared::kBytes), "cudaFuncSetAttribute");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  const int64_t clusters =
      std::min<int64_t>(capabilities(context.device).num_sms / sm90::kManyCluster, int64_t{a.token_tiles} * a.feature_pairs);
  config.gridDim = dim3(static_cast<unsigned>(clusters * sm90::kManyCluster));
  config.blockDim = dim3(sm90::kManyThreads);
  config.dynamicSmemBytes = sm90::ManyShared::kBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* arguments[] = {const_cast<CUtensorMap*>(&x), const_cast<CUtensorMap*>(&w), const_cast<CUtensorMap*>(&y), &a};
  check(cudaLaunchKernelExC(&config, kernel, arguments), "many_tokens_kernel");
}

}  // namespace

std::vector<Implementation<LinearParams>> many_tokens_linear() {
  return {implementation<LinearParams>("cuda/sm90_many", {.supports = supports, .workspace_bytes = workspace_bytes, .run = run})};
}

}  // namespace strata::cuda
