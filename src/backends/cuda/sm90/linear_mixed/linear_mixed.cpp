// "cuda/sm90_mixed" of grouped_linear: bf16 activations and an e4m3 weight on Hopper, which is packed when it is loaded. Few tokens by our
// kernel, which reads the codes; many by cuBLASLt, of the weight as bf16 in the workspace.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "backends/cuda/common/check.h"
#include "backends/cuda/common/cuda_device.h"
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/common/launch_config.h"
#include "backends/cuda/common/product_output.h"
#include "backends/cuda/linear_impls.h"
#include "backends/cuda/sm90/linear/tensor_map.h"
#include "backends/cuda/sm90/linear_mixed/packed.h"
#include "core/arena.h"
#include "core/ceil_div.h"
#include "ops/linear/packed_weight.h"
#include "ops/linear/row_alignment.h"

namespace strata::cuda {
namespace {

using namespace sm90;

constexpr const char* kName = "cuda/sm90_mixed";
// In launches of kMixedTokens. Beyond, making bf16 of the weight costs less than reading it again.
constexpr int64_t kFewTokens = 4 * kMixedTokens;
constexpr int64_t kMostChannels = 1 << 17;  // a tile's scales lie in shared memory, beside the ring
// What it costs to add the partial sums of a pair, in the bytes / 128 that a CTA brings in that time.
constexpr int64_t kSplitCost = 60;

constexpr int token_rows(int64_t tokens) { return tokens <= token_product_rows(tokens) ? token_product_rows(tokens) : kMixedTokens; }

struct Plan {
  StreamedTile tile;
  int split, max_chunk, stages;
};

// Tiles of 128 or 64 features, one CTA's or a pair's, which brings least to each SM: codes, and tokens, which are in L2, at half of their
// bytes. What leaves codes has tiles of the features under one scale.
Plan plan_of(const LinearWeight& w, int64_t tokens, bool leaves_codes, const Capabilities& device) {
  const int64_t blocks = w.k / kMixedBlock;
  std::optional<Plan> best;
  int64_t best_cost = 0;
  for (const int parts : {2, 1}) {
    if (leaves_codes && parts * kMixedRows != kActivationBlock) continue;
    for (const int split : {1, 2}) {
      const StreamedTile tile{token_rows(tokens), parts};
      const int64_t chunk = ceil_div(blocks, int64_t{split}), tiles = w.groups * w.n / (parts * kMixedRows);
      const int64_t rounds = ceil_div(tiles * split, int64_t{device.num_sms});
      const int64_t cost = rounds * (chunk * (parts * kMixedRows + tile.tokens) + kSplitCost * split);
      if (split > blocks || (best && cost >= best_cost)) continue;
      const auto max_chunk = static_cast<int>(chunk);
      int stages = max_chunk;
      while (stages > 0 && MixedShared(tile, split, max_chunk, stages).bytes > device.max_shared_bytes) --stages;
      // A stage is always the same warpgroups', which give one back while they multiply the next: two for each at least, as there are.
      if (stages < max_chunk) stages = stages / tile.slices() * tile.slices();
      best = Plan{.tile = tile, .split = split, .max_chunk = max_chunk, .stages = stages};
      best_cost = cost;
    }
  }
  return *best;
}

bool few(const TensorView& x) { return x.shape[0] <= kFewTokens && ops::row_alignment(x) == 16; }

// What many tokens are multiplied by, in the arena's memory.
LinearWeight as_bf16(const LinearWeight& w, Arena& arena) {
  return {.n = w.n, .k = w.k, .groups = w.groups, .weight = arena.tensor(DType::bf16, {w.groups * w.n, w.k})};
}
GroupedLinearParams with_weight(const GroupedLinearParams& p, const LinearWeight& w) {
  GroupedLinearParams product = p;
  product.weight = &w;
  return product;
}

// At most kMixedTokens.
void run_few(const GroupedLinearParams& p, const ExecutionContext& context) {
  const LinearWeight& w = *p.weight;
  const Capabilities& device = capabilities(context.device);
  const int64_t num_tokens = p.x.shape[0];
  const bool codes = p.y_scale.present();
  const Plan plan = plan_of(w, num_tokens, codes, device);
  const auto* const packed = w.packed.ptr<uint8_t>();
  MixedArgs a{};
  a.codes = packed;
  a.w_scale = reinterpret_cast<const float*>(packed + mixed_code_bytes(w));
  set_output(a, p.y);
  set_output_scales(a, p.y_scale, p.y_format == ActivationFormat::fp8_ue8m0);
  a.num_tokens = static_cast<int>(num_tokens);
  a.n = static_cast<int>(w.n);
  a.num_blocks = static_cast<int>(w.k / kMixedBlock);
  a.tile_rows = plan.tile.parts * kMixedRows;
  a.split = plan.split;
  a.stages = plan.stages;
  a.max_chunk = plan.max_chunk;
  const CUtensorMap tokens =
      column_groups_map("x", p.x.data, p.x.shape[1], num_tokens, w.k, p.x.stride[1], p.x.stride[0], plan.tile.tokens, kMixedBlock / 64);
  const void* const kernel = mixed_kernel(plan.tile, codes);
  allow_shared_bytes(kernel, static_cast<size_t>(device.max_shared_bytes));
  all_shared_memory(kernel);
  const LaunchConfig config({.grid = dim3(static_cast<unsigned>(w.n / a.tile_rows * plan.split), static_cast<unsigned>(w.groups)),
                             .block = dim3(kMixedThreads),
                             .shared_bytes = static_cast<size_t>(MixedShared(plan.tile, plan.split, plan.max_chunk, plan.stages).bytes),
                             .cluster = static_cast<unsigned>(plan.split)},
                            native(context.stream), /*early=*/true);
  void* arguments[] = {const_cast<CUtensorMap*>(&tokens), &a};
  check(cudaLaunchKernelExC(config.get(), kernel, arguments), "mixed_kernel");
}

GroupedLinearParams tokens_of(const GroupedLinearParams& p, int64_t first, int64_t count) {
  GroupedLinearParams part = p;
  part.x = p.x.slice(first, count);
  part.y = p.y.slice(first, count);
  if (p.y_scale.present()) part.y_scale = p.y_scale.slice(first, count);
  return part;
}

Support support(const LinearWeight* w, const TensorView& x, const Capabilities& device) {
  if (Support on_device = needs_sm90(device); !on_device) return on_device;
  if (w == nullptr) return Support::no("no weight");
  if (!w->packed.present() || w->packing != kName) return Support::no(fmt::format("needs an e4m3 weight packed for {}", kName));
  if (x.dtype != DType::bf16) return Support::no("needs bf16 activations");
  return ops::packed_support(*w, static_cast<size_t>(mixed_bytes(*w)));
}

size_t packed_bytes(const LinearWeight& w, const Device& device) {
  if (!is_cuda(device) || !capabilities(device).sm90() || !w.weight.present() || w.weight.dtype != DType::e4m3) return 0;
  if (w.k > kMostChannels) return 0;
  const bool whole = w.n % kMixedTileRows == 0 && w.k % kMixedBlock == 0 && w.block_n % kMixedRows == 0 && w.block_k % kMixedBlock == 0;
  return whole && w.power_of_two_scales ? static_cast<size_t>(mixed_bytes(w)) : 0;
}

void pack(const LinearWeight& w, Device& device, void* dst) {
  DeviceScope scope(device.id().index);
  pack_mixed(w, dst, nullptr);
}

}  // namespace

std::vector<Implementation<GroupedLinearParams>> mixed_grouped_linear() {
  const Implementation<GroupedLinearParams> many = cublaslt_bf16_grouped_linear().front();
  Implementation<GroupedLinearParams> impl;
  impl.name = kName;
  impl.supports = [many](const GroupedLinearParams& p, const Device& device) -> Support {
    if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
    if (Support fits = support(p.weight, p.x, capabilities(device)); !fits || few(p.x)) return fits;
    Arena arena(p.x.device);
    const LinearWeight values = as_bf16(*p.weight, arena);
    return many.supports(with_weight(p, values), device);
  };
  impl.workspace_bytes = [many](const GroupedLinearParams& p, const Device& device) -> size_t {
    if (few(p.x)) return 0;
    Arena arena(p.x.device);
    const LinearWeight values = as_bf16(*p.weight, arena);
    arena.rest(many.workspace_bytes(with_weight(p, values), device));
    return arena.peak();
  };
  impl.run = [many](const GroupedLinearParams& p, const ExecutionContext& context) {
    const int64_t tokens = p.x.shape[0];
    if (p.y.numel() == 0) return;
    DeviceScope scope(context.device.id().index);
    if (few(p.x)) {
      for (int64_t first = 0; first < tokens; first += kMixedTokens) {
        run_few(tokens_of(p, first, std::min<int64_t>(tokens - first, kMixedTokens)), context);
      }
      return;
    }
    Arena arena(p.x.device, context.workspace);
    const LinearWeight values = as_bf16(*p.weight, arena);
    unpack_mixed(*p.weight, values.weight.ptr<Bf16>(), native(context.stream));
    const GroupedLinearParams product = with_weight(p, values);
    many.run(product, {context.device, context.stream, arena.rest(many.workspace_bytes(product, context.device))});
  };
  return {std::move(impl)};
}
bool mixed_leaves_codes(const GroupedLinearParams& p, const Device&) { return few(p.x); }
std::vector<WeightPacking> mixed_weight_packings() { return {{kName, packed_bytes, pack}}; }

}  // namespace strata::cuda
