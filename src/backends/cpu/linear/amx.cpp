// Linear layers by Strata's AMX product (amx_kernel.cpp), with weights packed as bf16 or as e4m3 (amx_format.h). FP8 weights stay one byte
// each: a decode step reads half of what a bf16 copy would cost, and a model takes half the memory. Activations are quantised and
// dequantised while they are packed into A operands. If their scales are not powers of two they are packed as unscaled e4m3 values, and the
// scales multiply the fp32 sums, like such scales of weights (Task::steps_per_sum). A task is one panel of 32 output features times a block
// of tokens whose operands fit L2 (1 MB); tasks of one block of tokens run next to each other.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "backends/cpu/linear/amx_format.h"
#include "backends/cpu/linear/amx_kernel.h"
#include "backends/cpu/linear/impls.h"
#include "backends/cpu/linear/quant.h"
#include "core/arena.h"
#include "core/ceil_div.h"
#include "core/check.h"

#if defined(__x86_64__)
namespace strata::cpu {
namespace {

constexpr const char* kName = "cpu/amx";
constexpr int64_t kBlockBytes = int64_t{1} << 20;  // of A operands

Support device_support(const Device& device) {
  if (device.id().kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  if (isa_of(device) < CpuIsa::amx) {
    return Support::no(fmt::format("needs AMX-BF16, the device has {}", to_string(isa_of(device))));
  }
  return Support::yes();
}

Support support(const LinearWeight* w, const Device& device) {
  Support on_device = device_support(device);
  if (!on_device) return on_device;
  if (w == nullptr) return Support::no("no weight");
  if (!w->packed.present()) return Support::no("row-major weights must be packed first");
  return w->packing == kName ? Support::yes() : Support::no(fmt::format("the weight is packed for {}", w->packing));
}

// How the tokens of a call are cut.
struct Tokens {
  int64_t count, rows, tiles, steps, block_tiles;

  Tokens(int64_t tokens, int64_t k)
      : count(tokens), rows(std::clamp<int64_t>(tokens, 1, amx::kTileRows)), tiles(ceil_div(tokens, rows)), steps(ceil_div(k, amx::kStep)) {
    // An even number, because the kernel takes tiles in twos.
    block_tiles = std::max<int64_t>(kBlockBytes / (amx::kTileRows * steps * 64) / 2 * 2, 2);
  }
  int64_t step_bytes() const { return rows * 64; }
  int64_t bytes() const { return tiles * steps * step_bytes(); }
};

struct Layout {
  TensorView a;        // A operands of one group
  TensorView decoded;  // [threads, steps * 2048]
  TensorView scales;   // f32 [T, ceil(K / 128)], if the A operands are unscaled e4m3 values
};

Layout layout(Arena& arena, const Tokens& t, int64_t k, int threads) {
  Layout l;
  l.a = arena.tensor(DType::u8, {t.bytes()});
  l.decoded = arena.tensor(DType::u8, {threads, t.steps * amx::kStepValues * 2});
  l.scales = arena.tensor(DType::f32, {t.count, activation_blocks(k)});
  return l;
}

// The activations of a group, x [T, K].
struct Activations {
  TensorView x, x_scale;
  ActivationFormat format = ActivationFormat::bf16;
  bool is_unscaled = false;  // A operands are unscaled e4m3 values, whose scales multiply the sums
};

bool powers_of_two(const TensorView& scale) {
  const auto is_one = [](float s) { return (float_bits(s) & 0x807FFFFFu) == 0; };
  for (int64_t t = 0; t < scale.shape[0]; ++t) {
    const float* const row = scale.row<float>(t);
    if (!std::all_of(row, row + scale.shape[1], is_one)) return false;
  }
  return true;
}

Activations activations(const TensorView& x, const TensorView& x_scale, ActivationFormat format) {
  // Grouped products do not state the format of e4m3 activations.
  const bool fp32_scales =
      format == ActivationFormat::fp8_f32 || (x.dtype == DType::e4m3 && format == ActivationFormat::bf16 && !powers_of_two(x_scale));
  return {x, x_scale, format, fp32_scales};
}

// Writes the tokens as A operands. row(t, first, n, out): channels [first, first + n) of token t as bf16; first is a multiple of 128.
template <class Row>
void pack_tokens(const Device& device, const Tokens& t, int64_t k, std::byte* a, const Row& row) {
  parallel_for(device, t.tiles * t.rows, 4, [&](int64_t token) {
    std::byte* const out = a + token / t.rows * t.steps * t.step_bytes() + token % t.rows * 64;
    constexpr int64_t kChunk = 1024;
    alignas(64) Bf16 values[kChunk];
    for (int64_t first = 0; first < k; first += kChunk) {
      const int64_t n = std::min(kChunk, k - first), steps = ceil_div(n, amx::kStep);
      if (token < t.count) {
        row(token, first, n, values);
        std::fill(values + n, values + steps * amx::kStep, Bf16{0});
      } else {
        std::fill_n(values, steps * amx::kStep, Bf16{0});
      }
      for (int64_t s = 0; s < steps; ++s) std::memcpy(out + (first / amx::kStep + s) * t.step_bytes(), values + s * amx::kStep, 64);
    }
  });
}

void pack_activations(const Device& device, const Layout& l, const Tokens& tokens, int64_t k, const Activations& activations) {
  const Activations& a = activations;
  pack_tokens(device, tokens, k, l.a.ptr<std::byte>(), [&](int64_t t, int64_t first, int64_t n, Bf16* out) {
    if (a.is_unscaled) {
      load_unscaled_activations(device, a.x, a.x_scale, a.format, t, first, n, out, l.scales.row<float>(t) + first / kActivationBlock);
    } else {
      load_activations(device, a.x, a.x_scale, a.format, t, first, n, out);
    }
  });
}

// 0: operands have their scales.
int64_t steps_per_sum(const amx::Group& w, bool activations_are_unscaled) {
  constexpr int64_t kStepsPerToken = kActivationBlock / amx::kStep;
  const int64_t of_weight = w.geometry.e4m3 ? w.steps_per_scale : kStepsPerToken;
  if (activations_are_unscaled) return std::gcd(of_weight, kStepsPerToken);
  return w.exact_scales ? 0 : of_weight;
}

void product(const Device& device, const Layout& l, const Tokens& t, const amx::Group& w, bool activations_are_unscaled, int64_t n,
             const TensorView& y) {
  const int64_t panels = w.geometry.panels, blocks = ceil_div(t.tiles, t.block_tiles);
  // With 4096 channels, a panel takes a few microseconds for one token and about a hundred for a block.
  const int64_t panels_per_task = t.tiles == 1 ? 4 : 1;
  const int64_t element = static_cast<int64_t>(size_of(y.dtype));
  parallel_for(device, blocks * panels, panels_per_task, [&](int64_t i) {
    const int64_t first_tile = i / panels * t.block_tiles, panel = i % panels;
    amx::Task task;
    task.a = l.a.ptr<std::byte>() + first_tile * t.steps * t.step_bytes();
    task.tiles = std::min(t.block_tiles, t.tiles - first_tile);
    task.rows = static_cast<int>(t.rows);
    task.steps = t.steps;
    task.panel = w.panels + static_cast<size_t>(panel * t.steps) * w.geometry.step_bytes();
    if (w.geometry.e4m3) {
      task.scales = w.scales + panel * w.geometry.scale_steps;
      task.masks = w.masks + panel * t.steps;
    }
    task.steps_per_scale = w.steps_per_scale;
    task.steps_per_sum = steps_per_sum(w, activations_are_unscaled);
    if (activations_are_unscaled) {
      task.token_scales = l.scales.row<float>(first_tile * t.rows);
      task.token_scale_stride = l.scales.stride[0];
    }
    task.decoded = l.decoded.row<std::byte>(thread_index());
    const int64_t first_token = first_tile * t.rows, first_feature = panel * amx::kPanel;
    task.tokens = std::min(task.tiles * t.rows, t.count - first_token);
    task.features = std::min(amx::kPanel, n - first_feature);
    task.y = y.ptr<std::byte>() + (first_token * y.stride[0] + first_feature) * element;
    task.y_stride = y.stride[0] * element;
    task.y_f32 = y.dtype == DType::f32;
    amx::multiply(task);
  });
}

void run_linear(const LinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  amx::check_packed(*p.weight);
  const Tokens tokens(p.x.shape[0], p.x.shape[1]);
  Arena arena(p.x.device, context.workspace);
  const Layout l = layout(arena, tokens, p.x.shape[1], threads_of(context.device));
  const Activations a = activations(p.x, p.x_scale, p.activation);
  pack_activations(context.device, l, tokens, p.x.shape[1], a);
  product(context.device, l, tokens, amx::group_of(*p.weight, 0), a.is_unscaled, p.weight->n, p.y);
}

void run_grouped(const GroupedLinearParams& p, const ExecutionContext& context) {
  if (p.y.numel() == 0) return;
  amx::check_packed(*p.weight);
  const int64_t k = p.x.shape[2];
  const Tokens tokens(p.x.shape[0], k);
  Arena arena(p.x.device, context.workspace);
  const Layout l = layout(arena, tokens, k, threads_of(context.device));
  for (int64_t g = 0; g < p.x.shape[1]; ++g) {
    const Activations a = activations(group_view(p.x, g), group_view(p.x_scale, g), ActivationFormat::bf16);
    pack_activations(context.device, l, tokens, k, a);
    product(context.device, l, tokens, amx::group_of(*p.weight, g), a.is_unscaled, p.weight->n, group_view(p.y, g));
  }
}

template <class Params>
Implementation<Params> implementation(int k_dimension, void (*run)(const Params&, const ExecutionContext&)) {
  Implementation<Params> impl;
  impl.name = kName;
  impl.supports = [](const Params& p, const Device& device) { return support(p.weight, device); };
  impl.workspace_bytes = [k_dimension](const Params& p, const Device& device) {
    Arena arena(p.x.device);
    const int64_t k = p.x.shape[k_dimension];
    layout(arena, Tokens(p.x.shape[0], k), k, threads_of(device));
    return arena.peak();
  };
  impl.run = run;
  return impl;
}

}  // namespace

std::vector<Implementation<LinearParams>> amx_linear() { return {implementation<LinearParams>(1, run_linear)}; }
std::vector<Implementation<GroupedLinearParams>> amx_grouped_linear() { return {implementation<GroupedLinearParams>(2, run_grouped)}; }

std::vector<WeightPacking> amx_weight_packings() {
  return {{kName, [](const LinearWeight& w, const Device& device) -> size_t { return device_support(device) ? amx::packed_bytes(w) : 0; },
           [](const LinearWeight& w, Device& device, void* dst) { amx::pack(device, w, static_cast<std::byte*>(dst)); }}};
}

}  // namespace strata::cpu
#else
namespace strata::cpu {
std::vector<Implementation<LinearParams>> amx_linear() { return {}; }
std::vector<Implementation<GroupedLinearParams>> amx_grouped_linear() { return {}; }
std::vector<WeightPacking> amx_weight_packings() { return {}; }
}  // namespace strata::cpu
#endif
