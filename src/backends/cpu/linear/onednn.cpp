// Linear layers by oneDNN's bf16 matmul, weights in its blocked layout. Floor: 2*M*N*K flops at the machine's bf16 rate (AMX: 2 cores at
// 3.7 TFLOP/s), or N*K*2 bytes of weights from memory for the few rows of decode, whichever is longer.
// e4m3 weights are left to cpu/amx and cpu/simd, which keep their bytes and do not round their scales into bf16 values. FP8 activations, of
// bf16 weights, are quantised and dequantised before the product (quant.h).
#include "backends/cpu/linear/impls.h"

#ifdef STRATA_WITH_ONEDNN
#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>

#include "backends/cpu/linear/onednn_matmul.h"
#include "backends/cpu/linear/quant.h"
#include "core/arena.h"
#include "core/ceil_div.h"
#include "core/check.h"
#include "contracts/packed_weight.h"

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

// An e4m3 weight as bf16 has twice the bytes to read and is rounded if its scales are not powers of two, and cpu/simd is as fast with e4m3
// (docs/performance.md).
Support takes(const LinearWeight& w) {
  if (w.weight.dtype == DType::e4m3) return Support::no("e4m3 weights would become bf16: twice the bytes, rounded scales");
  if (w.from_e4m3) return Support::no("the weight is a bf16 copy of one that may stay e4m3: twice the bytes, rounded scales");
  return Support::yes();
}

// Weights are cut into slices of output features, each packed for itself: a task is a slice of up to kBlockRows tokens.
constexpr int64_t kBlockRows = 256;

// Slices are wide enough to be worth a call, and there are at most 64 of a matrix where they need not be wider than 512. 128 features take
// as long as one call for all, 64 up to 6 % longer, but a small matrix has work for more threads then.
int64_t slice_width(int64_t n, int64_t k) {
  constexpr int64_t kMost = 512, kSlices = 64, kWeights = 32768, kSmall = 2048;
  const int64_t width = std::max(ceil_div(n, kSlices), ceil_div(kWeights, k)), multiple = n < kSmall ? 64 : 128;
  return std::min(n, std::min(kMost, ceil_div(width, multiple) * multiple));
}

// The slices of one group of a weight.
struct Slices {
  int64_t n, k, width, count;
  size_t bytes;  // of a packed one; the last may have fewer

  Slices(const Matmul& matmul, int64_t features, int64_t dim)
      : n(features), k(dim), width(slice_width(features, dim)), count(ceil_div(features, width)), bytes(matmul.packed_bytes(width, dim)) {}
  int64_t first(int64_t slice) const { return slice * width; }
  int64_t features(int64_t slice) const { return std::min(width, n - first(slice)); }
  size_t group_bytes(const Matmul& matmul) const {
    return static_cast<size_t>(count - 1) * bytes + matmul.packed_bytes(features(count - 1), k);
  }
};

size_t weight_bytes(const Matmul& matmul, const LinearWeight& w) {
  return Slices(matmul, w.n, w.k).group_bytes(matmul) * static_cast<size_t>(w.groups);
}

Support weight_support(const Matmul& matmul, const LinearWeight* w) {
  if (w == nullptr) return Support::no("no weight");
  if (w->packed.present()) {
    if (w->packing != kName) return Support::no(fmt::format("the weight is packed for {}", w->packing));
    return ops::packed_support(*w, weight_bytes(matmul, *w));
  }
  return takes(*w);
}

// x [T, K] of a group as bf16 and dense: as it is, or copied.
struct Activations {
  TensorView x, x_scale;
  ActivationFormat format = ActivationFormat::bf16;

  bool converted() const { return x.dtype == DType::e4m3 || format != ActivationFormat::bf16; }
  bool copied() const { return converted() || (x.shape[0] > 1 && x.stride[0] != x.shape[1]); }
  void copy_row(const Device& device, int64_t t, Bf16* out) const {
    if (converted()) return load_activations(device, x, x_scale, format, t, 0, x.shape[1], out);
    std::memcpy(out, x.row<Bf16>(t), static_cast<size_t>(x.shape[1]) * sizeof(Bf16));
  }
};

int64_t aligned(int64_t bytes) { return ceil_div(bytes, int64_t{Arena::kAlignment}) * int64_t{Arena::kAlignment}; }

// A thread's memory: what oneDNN needs, and the result of a task before it goes to the rows of y.
struct ThreadMemory {
  int64_t result_bytes, bytes;

  ThreadMemory(const Matmul& matmul, int64_t tokens, const Slices& slices, bool f32_out, bool row_major) {
    const int64_t rows = std::min(tokens, kBlockRows);
    result_bytes = aligned(rows * slices.width * (f32_out ? 4 : 2));
    bytes = result_bytes;
    for (const int64_t features : {slices.width, slices.features(slices.count - 1)}) {
      const auto scratch = static_cast<int64_t>(matmul.scratch_bound({rows, features, slices.k, f32_out, row_major}));
      bytes = std::max(bytes, result_bytes + aligned(scratch));
    }
  }
};

// One group of a call.
struct Product {
  const Matmul& matmul;
  const Slices& slices;
  const ThreadMemory& memory;
  const Bf16* x;  // dense
  const std::byte* weight;
  bool row_major;
  TensorView y;

  // Tokens [first, first + rows) of a slice.
  void run(int64_t slice, int64_t first, int64_t rows, std::byte* mine) const {
    const int64_t features = slices.features(slice);
    const bool f32_out = y.dtype == DType::f32;
    const void* const w = row_major ? weight + slices.first(slice) * slices.k * 2 : weight + static_cast<size_t>(slice) * slices.bytes;
    matmul.run({rows, features, slices.k, f32_out, row_major}, x + first * slices.k, w, mine,
               {mine + memory.result_bytes, memory.bytes - memory.result_bytes});
    const int64_t element = f32_out ? 4 : 2, row_bytes = features * element;
    for (int64_t t = 0; t < rows; ++t) {
      std::memcpy(y.ptr<std::byte>() + ((first + t) * y.stride[0] + slices.first(slice)) * element, mine + t * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }
};

const std::byte* group_weight(const Matmul& matmul, const LinearWeight& w, const Slices& slices, int64_t group) {
  if (w.packed.present()) return w.packed.ptr<std::byte>() + static_cast<size_t>(group) * slices.group_bytes(matmul);
  return w.weight.ptr<std::byte>() + group * w.n * w.k * 2;
}

// parallel_for of what may throw: the last error leaves it.
template <class F>
void try_parallel_for(const Device& device, int64_t n, F&& f) {
  std::mutex mutex;
  std::exception_ptr error;
  parallel_for(device, n, 1, [&](int64_t i) {
    try {
      f(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

// What a call of one group at a time takes.
struct Layout {
  TensorView x;       // bf16 [T, K] of a copy
  TensorView memory;  // u8 [threads, ThreadMemory::bytes]
};

Layout layout(Arena& arena, const Activations& a, const ThreadMemory& memory, int threads) {
  Layout l;
  if (a.copied()) l.x = arena.tensor(DType::bf16, {a.x.shape[0], a.x.shape[1]});
  l.memory = arena.tensor(DType::u8, {threads, memory.bytes});
  return l;
}

// All threads on one group: tasks of one block of tokens run next to each other.
void multiply(const Layout& l, const Activations& a, Product product, const Device& device) {
  const int64_t tokens = a.x.shape[0], blocks = ceil_div(tokens, kBlockRows), count = product.slices.count;
  product.x = a.x.ptr<Bf16>();
  if (a.copied()) {
    parallel_for(device, tokens, 4, [&](int64_t t) { a.copy_row(device, t, l.x.row<Bf16>(t)); });
    product.x = l.x.ptr<Bf16>();
  }
  try_parallel_for(device, blocks * count, [&](int64_t task) {
    const int64_t first = task / count * kBlockRows;
    product.run(task % count, first, std::min(kBlockRows, tokens - first), l.memory.row<std::byte>(thread_index()));
  });
}

void run_linear(const Matmul& matmul, const LinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  const Slices slices(matmul, p.weight->n, p.weight->k);
  const bool row_major = !p.weight->packed.present();
  const ThreadMemory memory(matmul, p.x.shape[0], slices, p.y.dtype == DType::f32, row_major);
  const Activations a{p.x, p.x_scale, p.activation};
  Arena arena(p.x.device, context.workspace);
  const Layout l = layout(arena, a, memory, threads_of(context.device));
  multiply(l, a, {matmul, slices, memory, nullptr, group_weight(matmul, *p.weight, slices, 0), row_major, p.y}, context.device);
}

size_t linear_workspace_bytes(const Matmul& matmul, const LinearParams& p, const Device& device) {
  const Slices slices(matmul, p.weight->n, p.weight->k);
  const ThreadMemory memory(matmul, p.x.shape[0], slices, p.y.dtype == DType::f32, !p.weight->packed.present());
  Arena arena(p.x.device);
  layout(arena, {p.x, p.x_scale, p.activation}, memory, threads_of(device));
  return arena.peak();
}

Activations group_activations(const GroupedLinearParams& p, int64_t group) {
  return {group_view(p.x, group), group_view(p.x_scale, group), ActivationFormat::bf16};
}

// The products of a few tokens with many groups (the heads of MLA) are too short to be shared: a thread takes whole groups.
constexpr int64_t kFewTokens = 32;
bool has_group_for_each_thread(const GroupedLinearParams& p, const Device& device) { return p.x.shape[1] >= threads_of(device); }

// Of a thread that takes whole groups: its memory for a product, then a copy of the group's activations.
int64_t own_bytes(const Activations& a, int64_t tokens, const ThreadMemory& memory) {
  return memory.bytes + aligned(tokens * a.x.shape[1] * static_cast<int64_t>(sizeof(Bf16)));
}

void run_groups_aside(const GroupedLinearParams& p, const Product& shared, const ExecutionContext& context) {
  const int64_t tokens = p.x.shape[0], bytes = own_bytes(group_activations(p, 0), tokens, shared.memory);
  try_parallel_for(context.device, p.x.shape[1], [&](int64_t g) {
    std::byte* const mine = static_cast<std::byte*>(context.workspace.data) + thread_index() * bytes;
    const Activations a = group_activations(p, g);
    Product product{
        shared.matmul,    shared.slices,     shared.memory, a.x.ptr<Bf16>(), group_weight(shared.matmul, *p.weight, shared.slices, g),
        shared.row_major, group_view(p.y, g)};
    if (a.copied()) {
      auto* const copy = reinterpret_cast<Bf16*>(mine + shared.memory.bytes);
      for (int64_t t = 0; t < tokens; ++t) a.copy_row(context.device, t, copy + t * a.x.shape[1]);
      product.x = copy;
    }
    for (int64_t slice = 0; slice < shared.slices.count; ++slice) product.run(slice, 0, tokens, mine);
  });
}

void run_grouped(const Matmul& matmul, const GroupedLinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  const int64_t tokens = p.x.shape[0];
  const Slices slices(matmul, p.weight->n, p.weight->k);
  const bool row_major = !p.weight->packed.present();
  const ThreadMemory memory(matmul, tokens, slices, p.y.dtype == DType::f32, row_major);
  const auto product = [&](int64_t g) {
    return Product{matmul, slices, memory, nullptr, group_weight(matmul, *p.weight, slices, g), row_major, group_view(p.y, g)};
  };
  if (tokens <= kFewTokens && has_group_for_each_thread(p, context.device)) return run_groups_aside(p, product(0), context);
  Arena arena(p.x.device, context.workspace);
  const Layout l = layout(arena, group_activations(p, 0), memory, threads_of(context.device));
  for (int64_t g = 0; g < p.x.shape[1]; ++g) multiply(l, group_activations(p, g), product(g), context.device);
}

// As much as fewer tokens take in the other way too: it does not shrink where the way changes.
size_t grouped_workspace_bytes(const Matmul& matmul, const GroupedLinearParams& p, const Device& device) {
  const int threads = threads_of(device);
  const Slices slices(matmul, p.weight->n, p.weight->k);
  const auto memory_of = [&](int64_t tokens) {
    return ThreadMemory(matmul, tokens, slices, p.y.dtype == DType::f32, !p.weight->packed.present());
  };
  const Activations a = group_activations(p, 0);
  Arena arena(p.x.device);
  layout(arena, a, memory_of(p.x.shape[0]), threads);
  if (!has_group_for_each_thread(p, device)) return arena.peak();
  const int64_t few = std::min(p.x.shape[0], kFewTokens);
  return std::max<size_t>(arena.peak(), static_cast<size_t>(threads * own_bytes(a, few, memory_of(few))));
}

size_t packed_bytes(const Matmul& matmul, const LinearWeight& w, const Device& device) {
  if (!device_support(device) || w.packed.present() || !takes(w) || w.n <= 0 || w.k <= 0 || w.groups <= 0) return 0;
  return weight_bytes(matmul, w);
}

void pack(const Matmul& matmul, const LinearWeight& w, Device& device, void* dst) {
  const Slices slices(matmul, w.n, w.k);
  const size_t group_bytes = slices.group_bytes(matmul);
  try_parallel_for(device, w.groups * slices.count, [&](int64_t task) {
    const int64_t g = task / slices.count, slice = task % slices.count;
    matmul.pack(slices.features(slice), w.k, w.weight.row<Bf16>(g * w.n + slices.first(slice)),
                static_cast<std::byte*>(dst) + static_cast<size_t>(g) * group_bytes + static_cast<size_t>(slice) * slices.bytes);
  });
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
  impl.workspace_bytes = [matmul](const LinearParams& p, const Device& device) { return linear_workspace_bytes(*matmul, p, device); };
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
