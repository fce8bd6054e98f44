// "cuda/sm90_streamed" of both linear ops and "cuda/sm90_many_tiles" of linear: the kernels for few tokens, and the quantiser of their
// activations.
#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/linear/call_views.h"
#include "backends/cuda/linear/impls.h"
#include "backends/cuda/linear/operands.h"
#include "backends/cuda/linear/sm90/many_tiles.h"
#include "backends/cuda/linear/sm90/streamed.h"
#include "backends/cuda/runtime/implementation.h"
#include "core/arena.h"
#include "core/ceil_div.h"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

// What both ops require of every kernel.
Support support(const LinearWeight* w, bool quantized, const TensorView& x, const Device& device) {
  if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
  if (Support on_device = needs_sm90(capabilities(device)); !on_device) return on_device;
  if (w == nullptr) return Support::no("no weight");
  if (!w->weight.present() || w->weight.dtype != DType::e4m3) return Support::no("needs a row-major e4m3 weight");
  if (!quantized) return Support::no("needs fp8 activations");
  if (x.shape[0] > sm90::kTokenProductMaxTokens) {
    return Support::no(fmt::format("takes at most {} tokens, got {}", sm90::kTokenProductMaxTokens, x.shape[0]));
  }
  return {sm90::token_product_refusal(*w, x)};
}
Support no_room(const LinearWeight& w, int64_t tokens) {
  return Support::no(fmt::format("{} tokens of {} groups of {} x {} have no tiles that fit", tokens, w.groups, w.n, w.k));
}

// The quantised x.
struct Quantized {
  TensorView values;  // e4m3 [T, K]
  TensorView scales;  // f32 [T, ceil(K / 128)]: rows contiguous; blocks contiguous where the product has its own quantiser
};
// As given, or workspace to be filled, with scales for at least kTokenProductMaxTokens tokens.
Quantized quantized(Arena& arena, const LinearParams& p) {
  if (p.x.dtype == DType::e4m3) return {p.x, p.x_scale};
  const int64_t tokens = p.x.shape[0], blocks = ceil_div(p.x.shape[1], kActivationBlock);
  const int64_t rows = std::max<int64_t>(tokens, sm90::kTokenProductMaxTokens);
  return {arena.tensor(DType::e4m3, {tokens, p.x.shape[1]}), arena.tensor(DType::f32, {rows, blocks}).slice(0, tokens)};
}

void quantize(const LinearParams& p, const Quantized& q, cudaStream_t stream) {
  if (p.x.dtype == DType::e4m3) return;
  quantize_rows(p.x, p.activation,
                {.values = q.values.ptr<E4m3>(),
                 .scales = q.scales.ptr<float>(),
                 .scale_token = q.scales.stride[0],
                 .scale_block = q.scales.stride[1]},
                /*overlap=*/true, stream);
}

std::optional<sm90::StreamedPlan> streamed_plan(const LinearParams& p, const Capabilities& device) {
  return sm90::plan_streamed(*p.weight, p.x.shape[0], p.weight->shares_device, device);
}
int stages_of_many_tiles(const LinearParams& p, const Capabilities& device) {
  return sm90::many_tiles_stages(*p.weight, p.x.shape[0], p.weight->shares_device, device);
}

// Beyond kLinearMaxTokens the tiles must be small, because every tile loads the tokens from L2. They may load at most two fifths of what a
// tile of 128 x 128 with all of k loads, of which cuBLASLt has one wave (docs/kernels/linear.md).
bool brings_little(const sm90::StreamedPlan& plan, const LinearWeight& w) {
  const int64_t blocks = ceil_div(w.k, int64_t{sm90::kLinearBlock});
  return 5 * plan.max_chunk * (plan.tile_rows + plan.tile.tokens) <= 2 * blocks * 256;
}

Support supports_linear(const LinearParams& p, const Device& device) {
  return support(p.weight, p.activation != ActivationFormat::bf16, p.x, device);
}
size_t workspace_bytes(const LinearParams& p, const Device&) {
  Arena arena(p.x.device);
  quantized(arena, p);
  return arena.peak();
}
// multiply(product) calls the kernel.
template <class Multiply>
void run_linear(const LinearParams& p, const ExecutionContext& context, const Multiply& multiply) {
  if (p.y.numel() == 0) return;
  DeviceScope scope(context.device.id().index);
  Arena arena(p.x.device, context.workspace);
  Quantized q = quantized(arena, p);
  if (p.x.dtype == DType::bf16) {  // scales of a block are contiguous
    q.scales.stride[0] = 1;
    q.scales.stride[1] = sm90::token_product_rows(p.x.shape[0]);
  }
  quantize(p, q, native(context.stream));
  multiply(sm90::TokenProduct{as_grouped(q.values), as_grouped(q.scales), *p.weight, as_grouped(p.y)});
}

std::optional<sm90::StreamedPlan> plan(const GroupedLinearParams& p, const Capabilities& device) {
  return sm90::plan_streamed(*p.weight, p.x.shape[0], /*shares_device=*/false, device);
}
Support supports_grouped(const GroupedLinearParams& p, const Device& device) {
  Support s = support(p.weight, p.x.dtype == DType::e4m3, p.x, device);
  return !s || plan(p, capabilities(device)) ? s : no_room(*p.weight, p.x.shape[0]);
}

void run_grouped(const GroupedLinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  DeviceScope scope(context.device.id().index);
  const Capabilities device = capabilities(context.device);
  const bool ue8m0 = p.y_format == ActivationFormat::fp8_ue8m0;
  sm90::run_streamed(*plan(p, device), {p.x, p.x_scale, *p.weight, p.y, p.y_scale, ue8m0}, device, native(context.stream));
}

}  // namespace

Implementation<LinearParams> streamed_linear() {
  Implementation<LinearParams> impl;
  impl.name = "cuda/sm90_streamed";
  impl.supports = [](const LinearParams& p, const Device& device) {
    Support s = supports_linear(p, device);
    return !s || streamed_plan(p, capabilities(device)) ? s : no_room(*p.weight, p.x.shape[0]);
  };
  impl.prefers = [](const LinearParams& p, const Device& device) {
    const int64_t tokens = p.x.shape[0];
    if (tokens <= sm90::kLinearMaxTokens || brings_little(*streamed_plan(p, capabilities(device)), *p.weight)) return Support::yes();
    return Support::no(fmt::format("{} tokens of {} x {} are too many: cuBLASLt's tiles read less", tokens, p.weight->n, p.weight->k));
  };
  impl.workspace_bytes = workspace_bytes;
  impl.run = [](const LinearParams& p, const ExecutionContext& context) {
    const Capabilities device = capabilities(context.device);
    run_linear(p, context, [&](const sm90::TokenProduct& product) {
      sm90::run_streamed(*streamed_plan(p, device), product, device, native(context.stream));
    });
  };
  return impl;
}

Implementation<LinearParams> many_tiles_linear() {
  Implementation<LinearParams> impl;
  impl.name = "cuda/sm90_many_tiles";
  impl.supports = [](const LinearParams& p, const Device& device) {
    Support s = supports_linear(p, device);
    return !s || stages_of_many_tiles(p, capabilities(device)) > 0 ? s : no_room(*p.weight, p.x.shape[0]);
  };
  impl.prefers = [](const LinearParams& p, const Device& device) {
    const Capabilities c = capabilities(device);
    if (streamed_plan(p, c)) return Support::no("sm90_streamed has all tiles under way at once");
    return sm90::many_tiles_fill(*p.weight, c) ? Support::yes() : Support::no(fmt::format("has too few tiles for {} SMs", c.num_sms));
  };
  impl.workspace_bytes = workspace_bytes;
  impl.run = [](const LinearParams& p, const ExecutionContext& context) {
    const Capabilities device = capabilities(context.device);
    run_linear(p, context, [&](const sm90::TokenProduct& product) {
      sm90::run_many_tiles(stages_of_many_tiles(p, device), product, device, native(context.stream));
    });
  };
  return impl;
}

Implementation<GroupedLinearParams> streamed_grouped_linear() {
  Implementation<GroupedLinearParams> impl;
  impl.name = "cuda/sm90_streamed";
  impl.supports = supports_grouped;
  impl.workspace_bytes = [](const GroupedLinearParams&, const Device&) -> size_t { return 0; };
  impl.run = run_grouped;
  impl.fuses = [](const GroupedLinearParams& p, const Device& device, std::string_view fusion) {
    return fusion == "y_scale" && supports_grouped(p, device) && plan(p, capabilities(device))->writes_quantized();
  };
  return impl;
}

}  // namespace strata::cuda
