// "cuda/sm90" of the linear ops: the kernel for few tokens, and the quantiser of its activations.
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/linear_impls.h"
#include "backends/cuda/smxx/linear/operands.h"
#include "backends/cuda/sm90/linear/launch.h"
#include "core/arena.h"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

constexpr const char* kName = "cuda/sm90";

Support support(const LinearWeight* w, bool codes, int64_t tokens, const Device& device) {
  if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
  if (const Support on_device = needs_sm90(capabilities(device)); !on_device) return on_device;
  if (w == nullptr) return Support::no("no weight");
  if (!w->weight.present() || w->weight.dtype != DType::e4m3) return Support::no("needs a row-major e4m3 weight");
  if (!codes) return Support::no("needs fp8 activations");
  return {sm90::refusal(*w, tokens, capabilities(device))};
}

struct Quantized {
  TensorView codes;   // e4m3 [T, K]
  TensorView scales;  // f32 [T, ceil(K / 128)]
};
Quantized quantized(Arena& arena, const TensorView& x) {
  const int64_t blocks = (x.shape[1] + kActivationBlock - 1) / kActivationBlock;
  return {arena.tensor(DType::e4m3, {x.shape[0], x.shape[1]}), arena.tensor(DType::f32, {x.shape[0], blocks})};
}

void run_linear(sm90::LinearLauncher& launcher, const LinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  DeviceScope scope(context.device.id().index);
  Arena arena(p.x.device, context.workspace);
  const Quantized q = quantized(arena, p.x);
  quantize_rows(p.x, p.activation,
                {.codes = q.codes.ptr<E4m3>(), .scales = q.scales.ptr<float>(), .scale_token = q.scales.stride[0], .scale_block = 1},
                native(context.stream));
  launcher.run({as_grouped(q.codes), as_grouped(q.scales), *p.weight, as_grouped(p.y), /*overlap=*/true}, context.device, native(context.stream));
}

void run_grouped(sm90::LinearLauncher& launcher, const GroupedLinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  DeviceScope scope(context.device.id().index);
  launcher.run({p.x, p.x_scale, *p.weight, p.y, /*overlap=*/false}, context.device, native(context.stream));
}

}  // namespace

std::vector<Implementation<LinearParams>> few_tokens_linear() {
  auto launcher = std::make_shared<sm90::LinearLauncher>();
  Implementation<LinearParams> impl;
  impl.name = kName;
  impl.supports = [](const LinearParams& p, const Device& device) {
    return support(p.weight, p.activation != ActivationFormat::bf16, p.x.shape[0], device);
  };
  impl.workspace_bytes = [](const LinearParams& p, const Device&) -> size_t {
    Arena arena(p.x.device);
    quantized(arena, p.x);
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
    return support(p.weight, p.x.dtype == DType::e4m3, p.x.shape[0], device);
  };
  impl.workspace_bytes = [](const GroupedLinearParams&, const Device&) -> size_t { return 0; };
  impl.run = [launcher](const GroupedLinearParams& p, const ExecutionContext& context) { run_grouped(*launcher, p, context); };
  return {std::move(impl)};
}

}  // namespace strata::cuda
