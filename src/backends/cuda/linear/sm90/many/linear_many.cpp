// "cuda/sm90_many": FP8 linear layers for many tokens: the quantiser of x, or its scales transposed, and the product of kernel.cu.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "backends/cuda/linear/call_views.h"
#include "backends/cuda/linear/cublaslt/matmul.h"
#include "backends/cuda/linear/impls.h"
#include "backends/cuda/linear/operands.h"
#include "backends/cuda/linear/sm90/config.h"
#include "backends/cuda/linear/sm90/many/config.h"
#include "backends/cuda/linear/sm90/streamed.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/runtime/implementation.h"
#include "backends/cuda/runtime/launch_config.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "core/arena.h"
#include "core/ceil_div.h"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

// A cluster's tile.
constexpr int64_t kTokens = sm90::kManyCluster * sm90::kManyTokens, kFeatures = sm90::kManyFeatures;

// What both ops require.
Support weight_supports(const LinearWeight* w, const Capabilities& device) {
  if (Support on_device = needs_sm90(device); !on_device) return on_device;
  if (w == nullptr) return Support::no("no weight");
  if (!w->weight.present() || w->weight.dtype != DType::e4m3) return Support::no("needs a row-major e4m3 weight");
  if (w->block_n % sm90::kManyBlock != 0 || w->block_k != sm90::kManyBlock) {
    return Support::no(fmt::format("needs weight scales of (a multiple of) 128 x 128 blocks, has {} x {}", w->block_n, w->block_k));
  }
  if (w->k % 16 != 0) return Support::no(fmt::format("needs a multiple of 16 input features, got {}", w->k));
  // Rows of y are stored in units of 16 bytes, and memory between rows must not be written.
  if (w->n % 8 != 0) return Support::no(fmt::format("needs a multiple of 8 output features, got {}", w->n));
  return Support::yes();
}
// Of one group, cuBLASLt's tiles are smaller: this kernel is faster where three quarters of the tiles of all rounds of the clusters are
// of use, counting tokens by 128 as cuBLASLt does (docs/kernels/linear.md).
bool fills(int64_t n, int64_t tokens, const Capabilities& device) {
  const int64_t rounds = sm90::TileWalk(tokens, n, 1).rounds(device.num_sms);
  const int64_t used = ceil_div(tokens, int64_t{sm90::kManyTokens}) * sm90::kManyTokens * n;
  const int64_t all = rounds * sm90::many_clusters(device.num_sms) * kTokens * kFeatures;
  return 4 * used >= 3 * all;
}
// Of several groups, whether the kernel for few tokens takes the call: all tiles are under way at once there.
bool few_take(const LinearWeight& w, int64_t tokens, const Capabilities& device) {
  return tokens <= sm90::kTokenProductMaxTokens && sm90::plan_streamed(w, tokens, /*shares_device=*/false, device);
}
Support too_few(int64_t tokens, int64_t features) {
  return Support::no(fmt::format("{} tokens of {} features are too few for tiles of {} by {}", tokens, features, kTokens, kFeatures));
}

Support supports(const LinearParams& p, const Capabilities& device) {
  if (Support s = weight_supports(p.weight, device); !s) return s;
  if (p.activation == ActivationFormat::bf16) return Support::no("needs fp8 activations");
  if (p.x.dtype == DType::e4m3 && p.x.stride[0] % 16 != 0) return Support::no("rows of codes must begin at multiples of 16 bytes");
  if (p.y.dtype != DType::bf16 || p.y.stride[0] % 8 != 0) return Support::no("needs bf16 rows of y at multiples of 16 bytes");
  return Support::yes();
}

Support supports(const GroupedLinearParams& p, const Capabilities& device) {
  if (Support s = weight_supports(p.weight, device); !s) return s;
  if (p.x.dtype != DType::e4m3) return Support::no("x must be e4m3");
  if (p.weight->groups > 1 && p.weight->n % sm90::kManyBlock != 0) return Support::no("groups of features must be multiples of 128");
  if (p.x.stride[0] % 16 != 0 || p.x.stride[1] % 16 != 0 || p.y.stride[0] % 8 != 0 || p.y.stride[1] % 8 != 0) {
    return Support::no("rows of x and y must begin at multiples of 16 bytes");
  }
  // A tensor map's coordinates are of 32 bits, and groups are columns of one.
  const int64_t groups = p.weight->groups;
  if ((groups - 1) * std::max(p.x.stride[1], p.y.stride[1]) + std::max(p.weight->k, p.weight->n) > std::numeric_limits<int32_t>::max())
    return Support::no("the groups of x and y must lie within 2^31 columns");
  return Support::yes();
}

Support prefers(const LinearParams& p, const Capabilities& device) {
  const int64_t tokens = p.x.shape[0];
  return fills(p.weight->n, tokens, device) ? Support::yes() : too_few(tokens, p.weight->n);
}
Support prefers(const GroupedLinearParams& p, const Capabilities& device) {
  const int64_t tokens = p.x.shape[0], features = p.weight->n * p.weight->groups;
  const bool fast = p.weight->groups == 1 ? fills(features, tokens, device) : !few_take(*p.weight, tokens, device);
  return fast ? Support::yes() : too_few(tokens, features);
}

struct Quantized {
  TensorView values;  // e4m3 [T, K], as given or in the workspace
  TensorView scales;  // f32 [blocks of 128 channels, T to a whole number of tiles]
};
TensorView scales_of(Arena& arena, int64_t tokens, int64_t blocks) {
  return arena.tensor(DType::f32, {blocks, ceil_div(tokens, kTokens) * kTokens});
}
Quantized quantized(Arena& arena, const TensorView& x) {
  const int64_t tokens = x.shape[0], k = x.shape[1];
  return {x.dtype == DType::e4m3 ? x : arena.tensor(DType::e4m3, {tokens, k}), scales_of(arena, tokens, ceil_div(k, kActivationBlock))};
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
size_t workspace_bytes(const GroupedLinearParams& p, const Capabilities& device) {
  if (p.weight->groups == 1) return workspace_bytes(as_linear(p), device);
  Arena arena(p.x.device);
  scales_of(arena, p.x.shape[0], p.x.shape[1] * (p.x.shape[2] / kActivationBlock));
  return arena.peak();
}

// y [T, G, N] = x [T, G, K] times the weight's groups, with x as e4m3 values and scales [G * blocks, whole tiles of tokens].
void multiply(const TensorView& x, const TensorView& scales, const LinearWeight& weight, const TensorView& y,
              const ExecutionContext& context) {
  const int64_t tokens = x.shape[0], k = weight.k, n = weight.n, groups = weight.groups;
  sm90::ManyArgs a{};
  a.x_scale = scales.ptr<float>();
  a.x_scale_stride = scales.stride[0];
  a.w_scale = weight.scale.ptr<float>();
  a.w_scale_stride = weight.scale.stride[0];
  a.weight_block_rows = static_cast<int>(weight.block_n);
  a.num_features = static_cast<int>(n);
  a.num_blocks = static_cast<int>(ceil_div(k, sm90::kManyBlock));
  a.x_group_stride = static_cast<int>(x.stride[1]);
  a.y_group_stride = static_cast<int>(y.stride[1]);
  a.walk = sm90::TileWalk(tokens, n, groups);
  // 256 bytes: 0.8 % faster than 128 for 65536 x 1536.
  constexpr auto kFetch = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  const CUtensorMap x_map =
      sm90::tensor_map("x", x.data, DType::e4m3, tokens, (groups - 1) * x.stride[1] + k, x.stride[0], sm90::kManyTokens, kFetch);
  const CUtensorMap w_map =
      sm90::tensor_map("weight", weight.weight.data, DType::e4m3, groups * n, k, k, sm90::kManyFeatures / sm90::kManyCluster, kFetch);
  const CUtensorMap y_map = sm90::tensor_map("y", y.data, DType::bf16, tokens, (groups - 1) * y.stride[1] + n, y.stride[0], 16);

  const void* const kernel = sm90::linear_many_kernel();
  allow_shared_bytes(kernel, sm90::ManyShared::kBytes);
  const LaunchConfig config({.grid = dim3(a.walk.blocks(capabilities(context.device).num_sms)),
                             .block = dim3(sm90::kManyThreads),
                             .shared_bytes = sm90::ManyShared::kBytes},
                            native(context.stream), /*early=*/true);
  void* arguments[] = {const_cast<CUtensorMap*>(&x_map), const_cast<CUtensorMap*>(&w_map), const_cast<CUtensorMap*>(&y_map), &a};
  check(cudaLaunchKernelExC(config.get(), kernel, arguments), "many_tokens_kernel");
}

void run(const LinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  Arena arena(p.x.device, context.workspace);
  const Quantized q = quantized(arena, p.x);
  if (p.x.dtype == DType::e4m3) {
    transpose_scales(as_grouped(p.x_scale), p.x.shape[0], q.scales.stride[0], q.scales.ptr<float>(), /*overlap=*/true,
                     native(context.stream));
  } else {
    quantize_rows(p.x, p.activation,
                  {.values = q.values.ptr<E4m3>(), .scales = q.scales.ptr<float>(), .scale_token = 1, .scale_block = q.scales.stride[0]},
                  /*overlap=*/true, native(context.stream));
  }
  multiply(as_grouped(q.values), q.scales, *p.weight, as_grouped(p.y), context);
}

void run(const GroupedLinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  Arena arena(p.x.device, context.workspace);
  const TensorView scales = scales_of(arena, p.x.shape[0], p.x.shape[1] * (p.x.shape[2] / kActivationBlock));
  transpose_scales(p.x_scale, p.x.shape[0], scales.stride[0], scales.ptr<float>(), /*overlap=*/true, native(context.stream));
  multiply(p.x, scales, *p.weight, p.y, context);
}

constexpr const char* kName = "cuda/sm90_many";

template <class Params>
Implementation<Params> implementation_of() {
  return implementation<Params>(kName, {.supports = supports, .workspace_bytes = workspace_bytes, .run = run, .prefers = prefers});
}

}  // namespace

Implementation<LinearParams> many_tokens_linear() { return implementation_of<LinearParams>(); }
Implementation<GroupedLinearParams> many_tokens_grouped_linear() { return implementation_of<GroupedLinearParams>(); }

}  // namespace strata::cuda
