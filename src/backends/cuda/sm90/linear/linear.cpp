// "cuda/sm90" of the linear ops: the kernels for few tokens, and the quantiser of their activations.
#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/common/implementation.h"
#include "backends/cuda/linear_impls.h"
#include "backends/cuda/smxx/linear/operands.h"
#include "backends/cuda/sm90/linear/launch.h"
#include "backends/cuda/sm90/linear/many_tiles.h"
#include "backends/cuda/sm90/linear/streamed.h"
#include "core/arena.h"
#include "core/ceil_div.h"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

constexpr const char* kName = "cuda/sm90";
// grouped_linear goes on in passes, for what sm90_many leaves: few features, or not 128 in a group.
constexpr int64_t kGroupedMaxTokens = 256;

Support support(const LinearWeight* w, bool codes, int64_t tokens, int64_t max_tokens, const Device& device) {
  if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
  if (Support on_device = needs_sm90(capabilities(device)); !on_device) return on_device;
  if (w == nullptr) return Support::no("no weight");
  if (!w->weight.present() || w->weight.dtype != DType::e4m3) return Support::no("needs a row-major e4m3 weight");
  if (!codes) return Support::no("needs fp8 activations");
  if (tokens > max_tokens) return Support::no(fmt::format("takes at most {} tokens, got {}", max_tokens, tokens));
  return {sm90::refusal(*w, std::min<int64_t>(tokens, sm90::kLinearMaxTokens), capabilities(device))};
}

// x as codes.
struct Quantized {
  TensorView codes;   // e4m3 [T, K]
  TensorView scales;  // f32 [T, ceil(K / 128)], rows contiguous; where the product has its own quantiser, blocks contiguous
};
// As they are given, or workspace to be filled; that has scales for kTokenProductMaxTokens tokens at least.
Quantized quantized(Arena& arena, const LinearParams& p) {
  if (p.x.dtype == DType::e4m3) return {p.x, p.x_scale};
  const int64_t tokens = p.x.shape[0], blocks = ceil_div(p.x.shape[1], kActivationBlock);
  const int64_t rows = std::max<int64_t>(tokens, sm90::kTokenProductMaxTokens);
  return {arena.tensor(DType::e4m3, {tokens, p.x.shape[1]}), arena.tensor(DType::f32, {rows, blocks}).slice(0, tokens)};
}

void quantize(const LinearParams& p, const Quantized& q, cudaStream_t stream) {
  if (p.x.dtype == DType::e4m3) return;
  quantize_rows(
      p.x, p.activation,
      {.codes = q.codes.ptr<E4m3>(), .scales = q.scales.ptr<float>(), .scale_token = q.scales.stride[0], .scale_block = q.scales.stride[1]},
      /*overlap=*/true, stream);
}

// Of a product whose tiles are all under way at once. codes: its x, or what it is quantised to.
std::optional<sm90::StreamedPlan> plan_product(const LinearParams& p, const TensorView& codes, const Capabilities& device) {
  if (codes.dtype == DType::e4m3 && !sm90::token_product_reads(codes)) return std::nullopt;
  return sm90::plan_streamed(*p.weight, p.x.shape[0], p.shares_device, device);
}

// Beyond kLinearMaxTokens these tiles have to be small, as L2 brings the tokens to each of them: at most two fifths of what a tile of
// 128 x 128 and all of k brings, of which cuBLASLt makes a round (docs/kernels/20261121-few-token-linear.md).
bool brings_little(const sm90::StreamedPlan& plan, const LinearWeight& w) {
  const int64_t blocks = ceil_div(w.k, int64_t{sm90::kLinearBlock});
  return 5 * plan.max_chunk * (plan.tile_rows + plan.tile.tokens) <= 2 * blocks * 256;
}

// By the kernels that the memory bounds; false where they do not take this.
bool run_token_product(const LinearParams& p, Quantized q, const Capabilities& device, cudaStream_t stream) {
  const int64_t tokens = p.x.shape[0];
  if (!sm90::token_product_reads(q.codes)) return false;
  const auto streamed = plan_product(p, q.codes, device);
  const int stages = streamed ? 0 : sm90::many_tiles_stages(*p.weight, tokens, p.shares_device, device);
  if (!streamed && stages == 0) return false;
  if (p.x.dtype == DType::bf16) {  // a block's scales side by side
    q.scales.stride[0] = 1;
    q.scales.stride[1] = sm90::token_product_rows(tokens);
  }
  quantize(p, q, stream);
  const sm90::TokenProduct product{as_grouped(q.codes), as_grouped(q.scales), *p.weight, as_grouped(p.y)};
  if (streamed) {
    sm90::run_streamed(*streamed, product, device, stream);
  } else {
    sm90::run_many_tiles(stages, product, device, stream);
  }
  return true;
}

void run_linear(sm90::LinearLauncher& launcher, const LinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  DeviceScope scope(context.device.id().index);
  Arena arena(p.x.device, context.workspace);
  const Quantized q = quantized(arena, p);
  const cudaStream_t stream = native(context.stream);
  if (run_token_product(p, q, capabilities(context.device), stream)) return;
  quantize(p, q, stream);
  launcher.run({as_grouped(q.codes), as_grouped(q.scales), *p.weight, as_grouped(p.y), p.shares_device}, context.device, stream);
}

std::optional<sm90::StreamedPlan> plan_grouped(const GroupedLinearParams& p, const Capabilities& device) {
  if (p.x.shape[0] > sm90::kTokenProductMaxTokens || !sm90::token_product_reads(p.x)) return std::nullopt;
  return sm90::plan_streamed(*p.weight, p.x.shape[0], /*shares_device=*/false, device);
}

void run_grouped(sm90::LinearLauncher& launcher, const GroupedLinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  DeviceScope scope(context.device.id().index);
  const Capabilities& device = capabilities(context.device);
  if (const auto plan = plan_grouped(p, device)) {
    const bool ue8m0 = p.y_format == ActivationFormat::fp8_ue8m0;
    return sm90::run_streamed(*plan, {p.x, p.x_scale, *p.weight, p.y, p.y_scale, ue8m0}, device, native(context.stream));
  }
  const int64_t tokens = p.x.shape[0];
  for (int64_t first = 0; first < tokens; first += sm90::kLinearMaxTokens) {
    const int64_t count = std::min<int64_t>(tokens - first, sm90::kLinearMaxTokens);
    launcher.run({p.x.slice(first, count), p.x_scale.slice(first, count), *p.weight, p.y.slice(first, count), /*shares_device=*/false},
                 context.device, native(context.stream));
  }
}

}  // namespace

std::vector<Implementation<LinearParams>> few_tokens_linear() {
  auto launcher = std::make_shared<sm90::LinearLauncher>();
  Implementation<LinearParams> impl;
  impl.name = kName;
  impl.supports = [](const LinearParams& p, const Device& device) {
    const int64_t tokens = p.x.shape[0];
    Support s = support(p.weight, p.activation != ActivationFormat::bf16, tokens, sm90::kTokenProductMaxTokens, device);
    if (!s || tokens <= sm90::kLinearMaxTokens) return s;
    const auto plan = plan_product(p, p.x, capabilities(device));
    if (plan && brings_little(*plan, *p.weight)) return s;
    return Support::no(fmt::format("{} tokens of {} x {} are too many", tokens, p.weight->n, p.weight->k));
  };
  impl.workspace_bytes = [](const LinearParams& p, const Device&) -> size_t {
    Arena arena(p.x.device);
    quantized(arena, p);
    return arena.peak();
  };
  impl.run = [launcher](const LinearParams& p, const ExecutionContext& context) { run_linear(*launcher, p, context); };
  return {std::move(impl)};
}

std::vector<Implementation<GroupedLinearParams>> few_tokens_grouped_linear() {
  auto launcher = std::make_shared<sm90::LinearLauncher>();
  Implementation<GroupedLinearParams> impl;
  impl.name = kName;
  impl.supports = [](const GroupedLinearParams& p, const Device& device) {
    return support(p.weight, p.x.dtype == DType::e4m3, p.x.shape[0], kGroupedMaxTokens, device);
  };
  impl.workspace_bytes = [](const GroupedLinearParams&, const Device&) -> size_t { return 0; };
  impl.run = [launcher](const GroupedLinearParams& p, const ExecutionContext& context) { run_grouped(*launcher, p, context); };
  return {std::move(impl)};
}
bool few_tokens_leaves_codes(const GroupedLinearParams& p, const Device& device) {
  if (!support(p.weight, p.x.dtype == DType::e4m3, p.x.shape[0], kGroupedMaxTokens, device)) return false;
  const auto plan = plan_grouped(p, capabilities(device));
  return plan && plan->leaves_codes();
}

}  // namespace strata::cuda
