// Linear layers by oneDNN's bf16 matmul, weights in its blocked layout. Floor: 2*M*N*K flops at the machine's bf16 rate (AMX: 2 cores at
// 3.7 TFLOP/s), or N*K*2 bytes of weights from memory for the few rows of decode, whichever is longer.
// e4m3 weights are left to cpu/amx and cpu/simd, which keep their bytes and do not round their scales into bf16 values. FP8 activations, of
// bf16 weights, are quantised and dequantised before the product (linear_quant.h).
#include "backends/cpu/linear_impls.h"

#ifdef STRATA_WITH_ONEDNN
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "backends/cpu/linear_onednn_matmul.h"
#include "backends/cpu/linear_quant.h"
#include "core/arena.h"
#include "core/check.h"
#include "ops/linear/packed_weight.h"

namespace strata::cpu {
namespace {

constexpr const char* kName = "cpu/onednn";
using Matmul = OneDnnMatmul;

Support device_support(const Device& device) {
  if (device.id().kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  const CpuIsa cap = device.config().cpu_isa;
  if (cap != CpuIsa::best && cap != CpuIsa::amx) {
    return Support::no(fmt::format("Config::cpu_isa is {}: oneDNN can only be capped for the whole process", to_string(cap)));
  }
  // It would make fp32 of bf16 operands, and be two to three times slower than cpu/simd from 4 tokens on (docs/performance.md).
  if (isa_of(device) < CpuIsa::avx512_bf16) return Support::no("oneDNN's bf16 products need AVX512_BF16");
  return Support::yes();
}

// As bf16 an e4m3 weight has twice the bytes to read, is rounded where its scales are no powers of two, and cpu/simd is as fast with the
// codes (docs/performance.md).
Support takes(const LinearWeight& w) {
  if (w.weight.dtype == DType::e4m3) return Support::no("e4m3 weights would become bf16: twice the bytes, rounded scales");
  if (w.from_e4m3) return Support::no("the weight is a bf16 copy of one that may stay e4m3: twice the bytes, rounded scales");
  return Support::yes();
}

Support weight_support(const Matmul& matmul, const LinearWeight* w) {
  if (w == nullptr) return Support::no("no weight");
  if (w->packed.present()) {
    if (w->packing != kName) return Support::no(fmt::format("the weight is packed for {}", w->packing));
    return ops::packed_support(*w, matmul.packed_bytes(w->n, w->k) * static_cast<size_t>(w->groups));
  }
  return takes(*w);
}

// One product of a call: where its operands are after strided or quantised ones went through the workspace.
struct Layout {
  TensorView x;  // dense copy of x; absent when x is read in place
  TensorView y;  // dense result; absent when y is written in place
  Workspace scratch;
};

bool dense_rows(const TensorView& v) { return v.shape[0] <= 1 || v.stride[0] == v.shape[1]; }

Layout layout(Arena& arena, const Matmul& matmul, const TensorView& x, bool convert_x, const TensorView& y, bool row_major, int threads) {
  Layout result;
  const int64_t m = x.shape[0];
  if (convert_x || !dense_rows(x)) result.x = arena.tensor(DType::bf16, {m, x.shape[1]});
  if (!dense_rows(y)) result.y = arena.tensor(y.dtype, {m, y.shape[1]});
  result.scratch = arena.rest(matmul.scratch_bound({m, y.shape[1], x.shape[1], y.dtype == DType::f32, row_major, threads}));
  return result;
}

void copy_rows(const Device& device, const TensorView& from, const TensorView& to) {
  const size_t bytes = static_cast<size_t>(from.shape[1]) * size_of(from.dtype);
  const int64_t element = static_cast<int64_t>(size_of(from.dtype));
  parallel_for(device, from.shape[0], 16, [&](int64_t t) {
    std::memcpy(to.row<std::byte>(0) + t * to.stride[0] * element, from.row<std::byte>(0) + t * from.stride[0] * element, bytes);
  });
}

// y = x W^T for one group, x already bf16 and dense when the layout has a copy of it.
void product(const Matmul& matmul, const Layout& l, const TensorView& x, const void* weight, bool row_major, const TensorView& y,
             const Device& device, int threads) {
  const Matmul::Shape shape{x.shape[0], y.shape[1], x.shape[1], y.dtype == DType::f32, row_major, threads};
  matmul.run(shape, l.x.present() ? l.x.data : x.data, weight, l.y.present() ? l.y.data : y.data, l.scratch);
  if (l.y.present()) copy_rows(device, l.y, y);
}

const std::byte* group_weight(const Matmul& matmul, const LinearWeight& w, int64_t group) {
  if (w.packed.present()) return w.packed.ptr<std::byte>() + group * static_cast<int64_t>(matmul.packed_bytes(w.n, w.k));
  return w.weight.ptr<std::byte>() + group * w.n * w.k * 2;
}

void run_linear(const Matmul& matmul, const LinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  const Device& device = context.device;
  const bool row_major = !p.weight->packed.present();
  Arena arena(p.x.device, context.workspace);
  const Layout l = layout(arena, matmul, p.x, p.activation != ActivationFormat::bf16, p.y, row_major, threads_of(device));
  if (l.x.present()) {
    parallel_for(device, p.x.shape[0], 4,
                 [&](int64_t t) { load_activations(device, p.x, p.x_scale, p.activation, t, 0, p.x.shape[1], l.x.row<Bf16>(t)); });
  }
  product(matmul, l, p.x, group_weight(matmul, *p.weight, 0), row_major, p.y, device, threads_of(device));
}

void multiply_group(const Matmul& matmul, const Layout& l, const GroupedLinearParams& p, int64_t g, const Device& device, int threads) {
  const TensorView x = group_view(p.x, g);
  if (p.x.dtype == DType::e4m3) {
    const TensorView x_scale = group_view(p.x_scale, g);
    parallel_for(device, x.shape[0], 4,
                 [&](int64_t t) { load_activations(device, x, x_scale, ActivationFormat::bf16, t, 0, x.shape[1], l.x.row<Bf16>(t)); });
  } else if (l.x.present()) {
    copy_rows(device, x, l.x);
  }
  product(matmul, l, x, group_weight(matmul, *p.weight, g), !p.weight->packed.present(), group_view(p.y, g), device, threads);
}

// What one group of `tokens` of the call's tokens takes.
Layout group_layout(Arena& arena, const Matmul& matmul, const GroupedLinearParams& p, int64_t tokens, int threads) {
  return layout(arena, matmul, group_view(p.x, 0).slice(0, tokens), p.x.dtype == DType::e4m3, group_view(p.y, 0).slice(0, tokens),
                !p.weight->packed.present(), threads);
}

size_t group_bytes(const Matmul& matmul, const GroupedLinearParams& p, int64_t tokens, int threads) {
  Arena arena(p.x.device);
  group_layout(arena, matmul, p, tokens, threads);
  return (arena.peak() + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

// The products of a few tokens with many groups (the heads of MLA) are too short to be shared: a thread takes whole groups. Shared, a layer
// of 128 heads was 256 teams that waited for their last thread, which took 5 s where other programs had the cores.
constexpr int64_t kFewTokens = 32;
bool has_group_for_each_thread(const GroupedLinearParams& p, const Device& device) { return p.x.shape[1] >= threads_of(device); }

void run_groups_aside(const Matmul& matmul, const GroupedLinearParams& p, const ExecutionContext& context) {
  const int64_t bytes = group_bytes(matmul, p, p.x.shape[0], 1);
  std::exception_ptr error;  // none may leave the parallel region
  parallel_for(context.device, p.x.shape[1], 1, [&](int64_t g) {
    try {
      const int64_t begin = omp_get_thread_num() * bytes;
      Arena arena(p.x.device, {static_cast<std::byte*>(context.workspace.data) + begin, bytes});
      multiply_group(matmul, group_layout(arena, matmul, p, p.x.shape[0], 1), p, g, context.device, 1);
    } catch (...) {
#pragma omp critical(strata_onednn_groups)
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

void run_grouped(const Matmul& matmul, const GroupedLinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  const int64_t tokens = p.x.shape[0];
  if (tokens <= kFewTokens && has_group_for_each_thread(p, context.device)) return run_groups_aside(matmul, p, context);
  const int threads = threads_of(context.device);
  Arena arena(p.x.device, context.workspace);
  const Layout l = group_layout(arena, matmul, p, tokens, threads);
  for (int64_t g = 0; g < p.x.shape[1]; ++g) multiply_group(matmul, l, p, g, context.device, threads);
}

// As much as fewer tokens take in the other way too: it does not shrink where the way changes.
size_t grouped_workspace_bytes(const Matmul& matmul, const GroupedLinearParams& p, const Device& device) {
  const int threads = threads_of(device);
  const int64_t tokens = p.x.shape[0];
  const size_t together = group_bytes(matmul, p, tokens, threads);
  if (!has_group_for_each_thread(p, device)) return together;
  return std::max(together, static_cast<size_t>(threads) * group_bytes(matmul, p, std::min(tokens, kFewTokens), 1));
}

size_t packed_bytes(const Matmul& matmul, const LinearWeight& w, const Device& device) {
  if (!device_support(device) || w.packed.present() || !takes(w) || w.n <= 0 || w.k <= 0 || w.groups <= 0) return 0;
  return matmul.packed_bytes(w.n, w.k) * static_cast<size_t>(w.groups);
}

void pack(const Matmul& matmul, const LinearWeight& w, Device& device, void* dst) {
  for (int64_t g = 0; g < w.groups; ++g) {
    matmul.pack(w.n, w.k, w.weight.row<Bf16>(g * w.n),
                static_cast<std::byte*>(dst) + g * static_cast<int64_t>(matmul.packed_bytes(w.n, w.k)), threads_of(device));
  }
}

}  // namespace

std::vector<Implementation<LinearParams>> onednn_linear() {
  auto matmul = OneDnnMatmul::shared();
  Implementation<LinearParams> impl;
  impl.name = kName;
  impl.supports = [matmul](const LinearParams& p, const Device& device) {
    const Support on_device = device_support(device);
    return on_device ? weight_support(*matmul, p.weight) : on_device;
  };
  impl.workspace_bytes = [matmul](const LinearParams& p, const Device& device) {
    Arena arena(p.x.device);
    layout(arena, *matmul, p.x, p.activation != ActivationFormat::bf16, p.y, !p.weight->packed.present(), threads_of(device));
    return arena.peak();
  };
  impl.run = [matmul](const LinearParams& p, const ExecutionContext& context) { run_linear(*matmul, p, context); };
  return {std::move(impl)};
}

std::vector<Implementation<GroupedLinearParams>> onednn_grouped_linear() {
  auto matmul = OneDnnMatmul::shared();
  Implementation<GroupedLinearParams> impl;
  impl.name = kName;
  impl.supports = [matmul](const GroupedLinearParams& p, const Device& device) {
    const Support on_device = device_support(device);
    return on_device ? weight_support(*matmul, p.weight) : on_device;
  };
  impl.workspace_bytes = [matmul](const GroupedLinearParams& p, const Device& device) {
    return grouped_workspace_bytes(*matmul, p, device);
  };
  impl.run = [matmul](const GroupedLinearParams& p, const ExecutionContext& context) { run_grouped(*matmul, p, context); };
  return {std::move(impl)};
}

std::vector<WeightPacking> onednn_weight_packings() {
  auto matmul = OneDnnMatmul::shared();
  return {{kName, [matmul](const LinearWeight& w, const Device& device) { return packed_bytes(*matmul, w, device); },
           [matmul](const LinearWeight& w, Device& device, void* dst) { pack(*matmul, w, device, dst); }}};
}

}  // namespace strata::cpu
#else
namespace strata::cpu {
std::vector<Implementation<LinearParams>> onednn_linear() { return {}; }
std::vector<Implementation<GroupedLinearParams>> onednn_grouped_linear() { return {}; }
std::vector<WeightPacking> onednn_weight_packings() { return {}; }
}  // namespace strata::cpu
#endif
