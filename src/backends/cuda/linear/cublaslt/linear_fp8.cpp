// "cuda/cublaslt_fp8": e4m3 products by cuBLASLt, which on Hopper supports 1 x 128 scales of the activations and 128 x 128 scales of the
// weight. Floor: 2 * T * N * K flops at the machine's FP8 rate. Its only tile, 128 x 128, loses to Strata's kernels for few tokens, which
// come first in the list. At 32 tokens 65536 x 1536 takes 26 us there and 45 here, 7168 x 16384 31 and 42. cuBLASLt takes multiples of four
// tokens; Strata's kernel for few tokens multiplies the remaining one to three.
#include <algorithm>

#include "backends/cuda/linear/call_views.h"
#include "backends/cuda/linear/cublaslt/matmul.h"
#include "backends/cuda/linear/few_tokens.h"
#include "backends/cuda/linear/impls.h"
#include "backends/cuda/linear/operands.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/runtime/implementation.h"
#include "core/arena.h"
#include "core/check.h"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

constexpr const char* kName = "cuda/cublaslt_fp8";
constexpr int64_t kStep = 4;  // tokens

int64_t whole(int64_t tokens) { return tokens / kStep * kStep; }

Support support(const LinearWeight* w, int64_t tokens, const TensorView& y, const Device& device) {
  if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
  if (Support on_device = needs_sm90(capabilities(device)); !on_device) return on_device;
  if (w == nullptr) return Support::no("no weight");
  if (!w->weight.present() || w->weight.dtype != DType::e4m3) return Support::no("needs a row-major e4m3 weight");
  if (w->block_n != 128 || w->block_k != 128)
    return Support::no(fmt::format("needs 128 x 128 weight scales, has {} x {}", w->block_n, w->block_k));
  if (w->k % 512 != 0)
    return Support::no(fmt::format("cuBLASLt reads weight scales four at a time: k must be a multiple of 512, is {}", w->k));
  if (!w->scale.is_contiguous()) return Support::no("weight scales must have no gaps");
  if (w->groups > 1 && w->n % 128 != 0) return Support::no(fmt::format("groups must be a multiple of 128 rows, have {}", w->n));
  const int64_t element = static_cast<int64_t>(size_of(y.dtype));
  if (w->n * element % 16 != 0 || y.stride[0] * element % 16 != 0) {
    return Support::no(fmt::format("rows of y must be multiples of 16 bytes, y is {}", y.describe()));
  }
  if (tokens < kStep && tokens > 0) return Support::no(fmt::format("needs at least {} tokens, got {}", kStep, tokens));
  return Support::yes();
}

// One product of whole(T) tokens; x_stride in elements of e4m3.
Product product(const LinearWeight& w, int64_t tokens, int64_t x_stride, const TensorView& y) {
  Product p;
  p.device = y.device.index;
  p.operands = Product::Operands::e4m3;
  p.y_f32 = y.dtype == DType::f32;
  p.tokens = whole(tokens);
  p.n = w.n;
  p.k = w.k;
  p.x_stride = x_stride;
  p.y_stride = y.stride[0];
  return p;
}

const char* no_kernel() { return "cuBLASLt has no kernel for this shape"; }

// linear: the e4m3 values [T, K] if x is bf16, and scales [K / 128][T] of the whole steps of tokens; then the workspace of the remaining
// tokens; then cuBLASLt's own workspace.
struct Layout {
  TensorView values, scales, scratch;
  Workspace rest;
};
Layout layout(Arena& arena, const TensorView& x, size_t rest_bytes) {
  const int64_t bulk = whole(x.shape[0]), k = x.shape[1];
  Layout l;
  l.values = x.dtype == DType::e4m3 ? x : arena.tensor(DType::e4m3, {bulk, k});
  l.scales = arena.tensor(DType::f32, {k / kActivationBlock, bulk});
  l.scratch = arena.tensor(DType::u8, {static_cast<int64_t>(CublasLt::kWorkspaceBytes)});
  l.rest = arena.rest(rest_bytes);
  return l;
}

class Linear {
 public:
  Support supports(const LinearParams& p, const Device& device) const {
    if (Support s = support(p.weight, p.x.shape[0], p.y, device); !s) return s;
    if (p.activation == ActivationFormat::bf16) return Support::no("activations must be fp8");
    const bool quantized = p.x.dtype == DType::e4m3;
    if (quantized && p.x.stride[0] % 16 != 0) return Support::no("rows of codes must begin at multiples of 16 bytes");
    if (const Support s = few_.supports(shapes_of(p, kStep - 1), device); !s) return Support::no("the last tokens: " + s.reason);
    if (std::string why = lt_->unavailable(p.x.device.index); !why.empty()) return Support::no(std::move(why));
    return lt_->plan(product(*p.weight, p.x.shape[0], quantized ? p.x.stride[0] : p.weight->k, p.y)) ? Support::yes()
                                                                                                     : Support::no(no_kernel());
  }
  size_t workspace_bytes(const LinearParams& p, const Device& device) const {
    Arena arena(p.x.device);
    layout(arena, p.x, few_.workspace_bytes(shapes_of(p, kStep - 1), device));
    return std::max(arena.peak(), many_.workspace_bytes(p, device));  // fewer tokens of the layer may select that kernel
  }
  void run(const LinearParams& p, const ExecutionContext& context) const {
    if (p.y.numel() == 0) return;
    DeviceScope scope(context.device.id().index);
    const int64_t tokens = p.x.shape[0], bulk = whole(tokens);
    Arena arena(p.x.device, context.workspace);
    const Layout l = layout(arena, p.x, few_.workspace_bytes(shapes_of(p, kStep - 1), context.device));
    if (p.x.dtype == DType::e4m3) {
      transpose_scales(as_grouped(p.x_scale), bulk, bulk, l.scales.ptr<float>(), /*overlap=*/true, native(context.stream));
    } else {
      quantize_rows(p.x.slice(0, bulk), p.activation,
                    {.values = l.values.ptr<E4m3>(), .scales = l.scales.ptr<float>(), .scale_token = 1, .scale_block = bulk},
                    /*overlap=*/true, native(context.stream));
    }
    lt_->run(product(*p.weight, tokens, l.values.stride[0], p.y),
             {.x = l.values.data,
              .x_scale = l.scales.ptr<float>(),
              .w = p.weight->weight.data,
              .w_scale = p.weight->scale.ptr<float>(),
              .y = p.y.data},
             l.scratch.data, context.stream);
    if (bulk < tokens) {
      few_.run(tokens_of(p, bulk, tokens - bulk), ExecutionContext{context.device, context.stream, l.rest});
    }
  }

 private:
  std::shared_ptr<CublasLt> lt_ = std::make_shared<CublasLt>();
  FewTokens few_;
  Implementation<LinearParams> many_ = many_tokens_linear();
};

}  // namespace

Implementation<LinearParams> cublaslt_fp8_linear() {
  const auto op = std::make_shared<Linear>();
  Implementation<LinearParams> impl;
  impl.name = kName;
  impl.supports = [op](const LinearParams& p, const Device& device) { return op->supports(p, device); };
  impl.workspace_bytes = [op](const LinearParams& p, const Device& device) { return op->workspace_bytes(p, device); };
  impl.run = [op](const LinearParams& p, const ExecutionContext& context) { op->run(p, context); };
  return impl;
}

Implementation<GroupedLinearParams> cublaslt_fp8_one_group() {
  const auto op = std::make_shared<Linear>();
  Implementation<GroupedLinearParams> impl;
  impl.name = kName;
  impl.supports = [op](const GroupedLinearParams& p, const Device& device) {
    if (p.weight != nullptr && p.weight->groups != 1) return Support::no("takes one group");
    return op->supports(as_linear(p), device);
  };
  impl.workspace_bytes = [op](const GroupedLinearParams& p, const Device& device) { return op->workspace_bytes(as_linear(p), device); };
  impl.run = [op](const GroupedLinearParams& p, const ExecutionContext& context) { op->run(as_linear(p), context); };
  return impl;
}

}  // namespace strata::cuda
