// "cuda/cublaslt": products in bf16 by cuBLASLt. Floor: 2 * T * N * K flops at the machine's bf16 rate, or 2 * N * K bytes of weights for
// few tokens. e4m3 weights are dequantised when packed. FP8 activations are quantised and dequantised before the product. This is exact
// when scales are powers of two; otherwise it costs one rounding of relative size 2^-9 per operand.
#include "backends/cuda/linear/call_views.h"
#include "backends/cuda/linear/cublaslt/matmul.h"
#include "backends/cuda/linear/impls.h"
#include "backends/cuda/linear/operands.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "core/arena.h"
#include "core/check.h"
#include "contracts/packed_weight.h"
#include "contracts/row_alignment.h"

namespace strata::cuda {
namespace {

constexpr const char* kName = "cuda/cublaslt";

// Row-major, or packed: rows without gaps in both cases.
bool has_bf16_rows(const LinearWeight& w) { return w.packed.present() ? w.packing == kName : w.weight.dtype == DType::bf16; }
const void* bf16_rows(const LinearWeight& w) { return w.packed.present() ? w.packed.data : w.weight.data; }

size_t bf16_bytes(const LinearWeight& w) { return static_cast<size_t>(w.groups * w.n * w.k) * sizeof(Bf16); }

// The product of x and y as [T, G, K] and [T, G, N].
Product product(const TensorView& x, const LinearWeight& w, const TensorView& y) {
  Product p;
  p.device = x.device.index;
  p.y_f32 = y.dtype == DType::f32;
  p.tokens = x.shape[0];
  p.n = w.n;
  p.k = w.k;
  p.x_stride = x.stride[0];
  p.y_stride = y.stride[0];
  p.batch = static_cast<int>(w.groups);
  p.x_batch = x.stride[1];
  p.w_batch = w.n * w.k;
  p.y_batch = y.stride[1];
  p.x_alignment = ops::row_alignment(x);
  p.y_alignment = ops::row_alignment(y);
  return p;
}

// The x of the product: a dense bf16 copy in the workspace when x is quantised, otherwise x itself. Then cuBLASLt's own workspace.
struct Layout {
  TensorView x;  // [T, G, K]
  TensorView scratch;
};
Layout layout(Arena& arena, const TensorView& x, bool convert) {
  Layout l;
  l.x = convert ? arena.tensor(DType::bf16, {x.shape[0], x.shape[1], x.shape[2]}) : x;
  l.scratch = arena.tensor(DType::u8, {static_cast<int64_t>(CublasLt::kWorkspaceBytes)});
  return l;
}

Support support(CublasLt& lt, const TensorView& x, bool convert, const LinearWeight* w, const TensorView& y, const Device& device) {
  if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
  if (w == nullptr) return Support::no("no weight");
  if (!has_bf16_rows(*w)) {
    return Support::no(w->packed.present() ? fmt::format("the weight is packed for {}", w->packing)
                                           : "e4m3 weights must be packed first: dequantised to bf16");
  }
  if (w->packed.present()) {
    if (Support fits = ops::packed_support(*w, bf16_bytes(*w)); !fits) return fits;
  }
  if (std::string why = lt.unavailable(x.device.index); !why.empty()) return Support::no(std::move(why));
  Arena arena(x.device);
  if (!lt.plan(product(layout(arena, x, convert).x, *w, y))) {
    return Support::no(fmt::format("cuBLASLt has no kernel for x {} and y {}", x.describe(), y.describe()));
  }
  return Support::yes();
}

size_t workspace_bytes(const TensorView& x, bool convert) {
  if (x.shape[0] == 0) return 0;
  Arena arena(x.device);
  layout(arena, x, convert);
  return arena.peak();
}

// convert(out): writes the bf16 form of x.
template <class Convert>
void multiply(CublasLt& lt, const TensorView& x, bool converted, const LinearWeight& w, const TensorView& y,
              const ExecutionContext& context, const Convert& convert) {
  if (y.numel() == 0) return;
  DeviceScope scope(context.device.id().index);
  Arena arena(x.device, context.workspace);
  const Layout l = layout(arena, x, converted);
  if (converted) convert(l.x.ptr<Bf16>());
  lt.run(product(l.x, w, y), {.x = l.x.data, .w = bf16_rows(w), .y = y.data}, l.scratch.data, context.stream);
}

size_t packed_bytes(const LinearWeight& w, const Device& device) {
  if (!is_cuda(device) || !w.weight.present() || w.weight.dtype != DType::e4m3) return 0;
  return bf16_bytes(w);
}

void pack(const LinearWeight& w, Device& device, void* dst) {
  DeviceScope scope(device.id().index);
  dequantize_weight(w, static_cast<Bf16*>(dst), nullptr);
}

}  // namespace

Implementation<LinearParams> cublaslt_bf16_linear() {
  auto lt = std::make_shared<CublasLt>();
  const auto converts = [](const LinearParams& p) { return p.activation != ActivationFormat::bf16; };
  Implementation<LinearParams> impl;
  impl.name = kName;
  impl.supports = [lt, converts](const LinearParams& p, const Device& device) {
    return support(*lt, as_grouped(p.x), converts(p), p.weight, as_grouped(p.y), device);
  };
  impl.workspace_bytes = [converts](const LinearParams& p, const Device&) { return workspace_bytes(as_grouped(p.x), converts(p)); };
  impl.run = [lt, converts](const LinearParams& p, const ExecutionContext& context) {
    multiply(*lt, as_grouped(p.x), converts(p), *p.weight, as_grouped(p.y), context, [&](Bf16* out) {
      if (p.x.dtype == DType::e4m3) {
        dequantize_grouped(as_grouped(p.x), as_grouped(p.x_scale), out, native(context.stream));
      } else {
        fake_quantize_rows(p.x, p.activation, out, native(context.stream));
      }
    });
  };
  return impl;
}

Implementation<GroupedLinearParams> cublaslt_bf16_grouped_linear() {
  auto lt = std::make_shared<CublasLt>();
  const auto converts = [](const GroupedLinearParams& p) { return p.x.dtype == DType::e4m3; };
  Implementation<GroupedLinearParams> impl;
  impl.name = kName;
  impl.supports = [lt, converts](const GroupedLinearParams& p, const Device& device) {
    return support(*lt, p.x, converts(p), p.weight, p.y, device);
  };
  impl.workspace_bytes = [converts](const GroupedLinearParams& p, const Device&) { return workspace_bytes(p.x, converts(p)); };
  impl.run = [lt, converts](const GroupedLinearParams& p, const ExecutionContext& context) {
    multiply(*lt, p.x, converts(p), *p.weight, p.y, context,
             [&](Bf16* out) { dequantize_grouped(p.x, p.x_scale, out, native(context.stream)); });
  };
  return impl;
}

std::vector<WeightPacking> cublaslt_weight_packings() { return {{kName, packed_bytes, pack}}; }

}  // namespace strata::cuda
