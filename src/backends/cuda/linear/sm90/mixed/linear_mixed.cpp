// bf16 activations and an e4m3 weight on Hopper, packed at load time. Two kernels read it, for few tokens (kernel.cu, "cuda/sm90_mixed")
// and many (many.cu, "cuda/sm90_mixed_many"). "cuda/sm90_mixed_many_few" uses the kernel for many for whole tiles of tokens and the other
// for the rest.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "backends/cuda/linear/call_views.h"
#include "backends/cuda/linear/impls.h"
#include "backends/cuda/linear/product_output.h"
#include "backends/cuda/linear/sm90/mixed/many.h"
#include "backends/cuda/linear/sm90/mixed/packed.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/runtime/implementation.h"
#include "backends/cuda/runtime/launch_config.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "core/arena.h"
#include "core/ceil_div.h"
#include "contracts/packed_weight.h"
#include "contracts/row_alignment.h"

namespace strata::cuda {
namespace {

using namespace sm90;

// Each reads a weight that was packed for any of them.
constexpr const char* kNames[] = {"cuda/sm90_mixed", "cuda/sm90_mixed_many", "cuda/sm90_mixed_many_few"};
constexpr int64_t kMaxChannels = 1 << 17;  // a tile's scales lie in shared memory, next to the ring
// Cost of adding the partial sums of a pair, in units of 128 bytes that a CTA loads in that time.
constexpr int64_t kSplitCost = 60;

// Plan of the kernel for few tokens.
struct Plan {
  StreamedTile tile;
  int token_tiles, tile_tokens, split, max_chunk, stages;
  int64_t cost;  // blocks of channels per SM, one after the other

  int shared_bytes() const { return MixedShared(tile, split, max_chunk, stages).bytes; }
};

// Selects tiles of 128 or 64 features, of one CTA or a pair, that load least per SM: weights, and tokens, which are in L2, at half of their
// bytes. Quantised output needs tiles of the features under one scale. At least one token.
Plan plan_of(const LinearWeight& w, int64_t tokens, bool writes_quantized, const Capabilities& device) {
  const int64_t blocks = w.k / kMixedBlock, token_tiles = ceil_div(tokens, int64_t{kMixedTokens});
  const int64_t tile_tokens = ceil_div(ceil_div(tokens, token_tiles), int64_t{8}) * 8;
  std::optional<Plan> best;
  int64_t best_cost = 0;
  for (const int row_tiles : {2, 1}) {
    if (writes_quantized && row_tiles * kMixedRows != kActivationBlock) continue;
    for (const int split : {1, 2}) {
      const StreamedTile tile = streamed_tile(token_product_rows(tile_tokens), row_tiles);
      const int64_t chunk = ceil_div(blocks, int64_t{split}), tiles = token_tiles * w.groups * w.n / (row_tiles * kMixedRows);
      const int64_t rounds = ceil_div(tiles * split, int64_t{device.num_sms});
      const int64_t cost = rounds * (chunk * (row_tiles * kMixedRows + tile_tokens) + kSplitCost * split);
      if (split > blocks || (best && cost >= best_cost)) continue;
      const auto max_chunk = static_cast<int>(chunk);
      Plan plan{.tile = tile,
                .token_tiles = static_cast<int>(token_tiles),
                .tile_tokens = static_cast<int>(tile_tokens),
                .split = split,
                .max_chunk = max_chunk,
                .stages = max_chunk,
                .cost = rounds * chunk};
      while (plan.stages > 0 && plan.shared_bytes() > device.max_shared_bytes) --plan.stages;
      // A stage always belongs to the same warpgroups, which release one while they multiply the next: each has at least two.
      if (plan.stages < max_chunk) plan.stages = plan.stages / tile.slices * tile.slices;
      if (plan.stages < std::min(max_chunk, 2 * tile.slices)) continue;
      best = plan;
      best_cost = cost;
    }
  }
  return *best;
}

bool aligned(const TensorView& v) { return ops::row_alignment(v) == 16; }
// The multiplied x: x itself, or a copy with aligned rows.
TensorView operand(Arena& arena, const TensorView& x) {
  return aligned(x) ? x : arena.tensor(DType::bf16, {x.shape[0], x.shape[1], x.shape[2]});
}
void copy_rows(const TensorView& to, const TensorView& from, cudaStream_t stream) {
  for (int64_t g = 0; g < from.shape[1]; ++g) {
    const auto bytes = static_cast<size_t>(from.shape[2]) * sizeof(Bf16);
    check(cudaMemcpy2DAsync(to.ptr<Bf16>() + g * to.stride[1], static_cast<size_t>(to.stride[0]) * sizeof(Bf16),
                            from.ptr<Bf16>() + g * from.stride[1], static_cast<size_t>(from.stride[0]) * sizeof(Bf16), bytes,
                            static_cast<size_t>(from.shape[0]), cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpy2DAsync");
  }
}

// How many of the first tokens use the kernel for many: none, all, or whole tiles where the rest would add a wave. A wave of its tiles of
// 256 x 256 takes 1.5 times as long as one of the other kernel's tiles of up to 128 x 128.
int64_t tokens_of_many(const LinearWeight& w, int64_t tokens, const Capabilities& device) {
  const auto cost_of_few = [&](int64_t few) { return few == 0 ? 0 : 2 * plan_of(w, few, /*writes_quantized=*/false, device).cost; };
  const auto cost_of_many = [&](int64_t many) { return 3 * TileWalk(many, w.n, w.groups).rounds(device.num_sms) * (w.k / kMixedBlock); };
  const int64_t whole = tokens / kMixedManyTokens * kMixedManyTokens;
  int64_t best = tokens, least = cost_of_many(tokens);
  for (const int64_t many : {whole, int64_t{0}}) {
    const int64_t cost = cost_of_many(many) + cost_of_few(tokens - many);
    if (cost < least) best = many, least = cost;
  }
  return best;
}

template <class Args>
void set_weight(Args& a, const LinearWeight& w) {
  a.packed_weight = w.packed.ptr<uint8_t>();
  a.w_scale = reinterpret_cast<const float*>(a.packed_weight + packed_weight_bytes(w));
  a.n = static_cast<int>(w.n);
  a.num_blocks = static_cast<int>(w.k / kMixedBlock);
}

void run_few(const GroupedLinearParams& p, const Plan& plan, const ExecutionContext& context) {
  const LinearWeight& w = *p.weight;
  const Capabilities& device = capabilities(context.device);
  const int64_t num_tokens = p.x.shape[0];
  MixedArgs a{};
  set_weight(a, w);
  set_output(a, p.y);
  set_output_scales(a, p.y_scale, p.y_format == ActivationFormat::fp8_ue8m0);
  a.num_tokens = static_cast<int>(num_tokens);
  a.tile_tokens = plan.tile_tokens;
  a.tile_rows = plan.tile.row_tiles * kMixedRows;
  a.split = plan.split;
  a.in_flight = blocks_in_flight(plan.tile, kMixedInFlight, plan.tile.row_tiles * kMixedRowTileBytes, plan.stages);
  a.stages = plan.stages;
  a.max_chunk = plan.max_chunk;
  const bool quantized = p.y_scale.present();
  const void* const kernel = mixed_kernel(plan.tile, quantized);
  allow_shared_bytes(kernel, static_cast<size_t>(device.max_shared_bytes));
  all_shared_memory(kernel);
  const LaunchConfig config({.grid = dim3(static_cast<unsigned>(w.n / a.tile_rows * plan.split), static_cast<unsigned>(w.groups),
                                          static_cast<unsigned>(plan.token_tiles)),
                             .block = dim3(static_cast<unsigned>(plan.tile.threads())),
                             .shared_bytes = static_cast<size_t>(plan.shared_bytes()),
                             .cluster = static_cast<unsigned>(plan.split)},
                            native(context.stream), /*early=*/true);
  const CUtensorMap tokens =
      column_groups_map("x", p.x.data, p.x.shape[1], num_tokens, w.k, p.x.stride[1], p.x.stride[0], plan.tile_tokens, kMixedBlock / 64);
  void* arguments[] = {const_cast<CUtensorMap*>(&tokens), &a};
  check(cudaLaunchKernelExC(config.get(), kernel, arguments), "mixed_kernel");
}

void run_many(const GroupedLinearParams& p, const ExecutionContext& context) {
  const LinearWeight& w = *p.weight;
  const int64_t num_tokens = p.x.shape[0];
  MixedManyArgs a{};
  set_weight(a, w);
  a.walk = TileWalk(num_tokens, w.n, w.groups);
  const CUtensorMap x = column_groups_map("x", p.x.data, w.groups, num_tokens, w.k, p.x.stride[1], p.x.stride[0], kManyTokens, 1);
  const CUtensorMap y = tensor_map("y", p.y.data, w.groups, num_tokens, w.n, p.y.stride[1], p.y.stride[0], kMixedManyOutTokens);
  const void* const kernel = mixed_many_kernel();
  allow_shared_bytes(kernel, MixedManyShared::kBytes);
  const LaunchConfig config({.grid = dim3(a.walk.blocks(capabilities(context.device).num_sms)),
                             .block = dim3(kMixedManyThreads),
                             .shared_bytes = MixedManyShared::kBytes},
                            native(context.stream), /*early=*/true);
  void* arguments[] = {const_cast<CUtensorMap*>(&x), const_cast<CUtensorMap*>(&y), &a};
  check(cudaLaunchKernelExC(config.get(), kernel, arguments), "many_kernel");
}

Support supports(const GroupedLinearParams& p, const Capabilities& device) {
  const LinearWeight* const w = p.weight;
  if (Support on_device = needs_sm90(device); !on_device) return on_device;
  if (w == nullptr) return Support::no("no weight");
  if (!w->packed.present() || std::ranges::find(kNames, w->packing) == std::end(kNames)) {
    return Support::no(fmt::format("needs an e4m3 weight packed for {}", kNames[0]));
  }
  if (p.x.dtype != DType::bf16) return Support::no("needs bf16 activations");
  return ops::packed_support(*w, static_cast<size_t>(mixed_bytes(*w)));
}

size_t packed_bytes(const LinearWeight& w, const Device& device) {
  if (!is_cuda(device) || !capabilities(device).sm90() || !w.weight.present() || w.weight.dtype != DType::e4m3) return 0;
  if (w.k > kMaxChannels) return 0;
  const bool whole = w.n % kMixedTileRows == 0 && w.k % kMixedBlock == 0 && w.block_n % kMixedRows == 0 && w.block_k % kMixedBlock == 0;
  return whole && w.power_of_two_scales ? static_cast<size_t>(mixed_bytes(w)) : 0;
}

void pack(const LinearWeight& w, Device& device, void* dst) {
  DeviceScope scope(device.id().index);
  pack_mixed(w, dst, nullptr);
}

size_t workspace_bytes(const GroupedLinearParams& p, const Capabilities&) {
  Arena arena(p.x.device);
  operand(arena, p.x);
  return arena.peak();
}

// How many of the first tokens should use the kernel for many. Calls that it cannot take (fp32 or unaligned results, FP8 values) use the
// other kernel.
int64_t tokens_of_many(const GroupedLinearParams& p, const Capabilities& device) {
  return p.y.dtype == DType::bf16 && aligned(p.y) ? tokens_of_many(*p.weight, p.x.shape[0], device) : 0;
}
Support supports_many(const GroupedLinearParams& p, const Capabilities& device) {
  if (Support s = supports(p, device); !s) return s;
  if (p.weight->k > kMixedManyChannels) {
    return Support::no(
        fmt::format("takes at most {} channels, as wgmma truncates its running sums, got {}", kMixedManyChannels, p.weight->k));
  }
  return p.y.dtype == DType::bf16 && aligned(p.y) ? Support::yes() : Support::no("needs bf16 rows of y at multiples of 16 bytes");
}
Support supports_many_few(const GroupedLinearParams& p, const Capabilities& device) {
  if (Support s = supports_many(p, device); !s) return s;
  const int64_t tokens = p.x.shape[0];
  if (tokens > kMixedManyTokens && tokens % kMixedManyTokens != 0) return Support::yes();
  return Support::no(fmt::format("needs more than {} tokens and not a multiple of them, got {}", kMixedManyTokens, tokens));
}

enum class By : uint8_t { few, many, many_few };
By best(const GroupedLinearParams& p, const Capabilities& device) {
  const int64_t many = tokens_of_many(p, device);
  return many == 0 ? By::few : many == p.x.shape[0] ? By::many : By::many_few;
}
template <By kBy>
Support prefers(const GroupedLinearParams& p, const Capabilities& device) {
  const By by = best(p, device);
  return by == kBy ? Support::yes() : Support::no(fmt::format("{} takes fewer rounds of tiles", kNames[static_cast<size_t>(by)]));
}

// multiply(product): p with aligned rows of x.
template <class Multiply>
void with_operand(const GroupedLinearParams& p, const ExecutionContext& context, const Multiply& multiply) {
  if (p.y.numel() == 0) return;
  Arena arena(p.x.device, context.workspace);
  GroupedLinearParams product = p;
  product.x = operand(arena, p.x);
  if (!aligned(p.x)) copy_rows(product.x, p.x, native(context.stream));
  multiply(product);
}
void run_few(const GroupedLinearParams& p, const ExecutionContext& context) {
  with_operand(p, context, [&](const GroupedLinearParams& product) {
    run_few(product, plan_of(*p.weight, p.x.shape[0], p.y_scale.present(), capabilities(context.device)), context);
  });
}
void run_all_by_many(const GroupedLinearParams& p, const ExecutionContext& context) {
  with_operand(p, context, [&](const GroupedLinearParams& product) { run_many(product, context); });
}
void run_many_few(const GroupedLinearParams& p, const ExecutionContext& context) {
  const int64_t tokens = p.x.shape[0], many = tokens / kMixedManyTokens * kMixedManyTokens;
  with_operand(p, context, [&](const GroupedLinearParams& product) {
    run_many(tokens_of(product, 0, many), context);
    run_few(tokens_of(product, many, tokens - many),
            plan_of(*p.weight, tokens - many, /*writes_quantized=*/false, capabilities(context.device)), context);
  });
}

// The kernel for few tokens quantises its own tiles, where it runs alone.
bool fuses(const GroupedLinearParams& p, const Capabilities& device, std::string_view fusion) {
  return fusion == "y_scale" && supports(p, device) && tokens_of_many(*p.weight, p.x.shape[0], device) == 0;
}

}  // namespace

Implementation<GroupedLinearParams> mixed_grouped_linear() {
  return implementation<GroupedLinearParams>(
      kNames[0], {.supports = supports, .workspace_bytes = workspace_bytes, .run = run_few, .prefers = prefers<By::few>, .fuses = fuses});
}
Implementation<GroupedLinearParams> mixed_many_grouped_linear() {
  return implementation<GroupedLinearParams>(
      kNames[1], {.supports = supports_many, .workspace_bytes = workspace_bytes, .run = run_all_by_many, .prefers = prefers<By::many>});
}
Implementation<GroupedLinearParams> mixed_many_few_grouped_linear() {
  return implementation<GroupedLinearParams>(
      kNames[2],
      {.supports = supports_many_few, .workspace_bytes = workspace_bytes, .run = run_many_few, .prefers = prefers<By::many_few>});
}
std::vector<WeightPacking> mixed_weight_packings() {
  std::vector<WeightPacking> packings;
  for (const char* name : kNames) packings.push_back({name, packed_bytes, pack});
  return packings;
}

}  // namespace strata::cuda
