// "cuda/sm90_bf16" of the linear ops: bf16 weights and few tokens on Hopper.
#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/linear/bf16_product.h"
#include "backends/cuda/linear/product_output.h"
#include "backends/cuda/linear/sm90/bf16/config.h"
#include "backends/cuda/linear/sm90/token_product.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/launch_config.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "core/ceil_div.h"
#include "contracts/row_alignment.h"

namespace strata::cuda {
namespace {

using namespace sm90;

// When sharing the device, a CTA with a long runtime (few tokens, many blocks of channels) leaves room on its SM for a CTA of an FP8
// product. V4-Pro's layer takes 3 us less with this at one token. V4-Flash's, with fewer channels, takes 1 us more; at 32 tokens both take
// 2 us more.
constexpr int kSharedBytesConcurrent = 112 << 10;
constexpr int kLongBlocks = 96;

int64_t num_tiles(const LinearWeight& w, int row_tiles) { return w.groups * ceil_div(w.n, int64_t{kBf16Rows} * row_tiles); }
// Row groups of a tile. Two where tiles of one would be more than SMs. Four where tiles of two are so too, if tiles stay whole: fewer ends
// of tiles, and all warpgroups have a group.
int num_row_tiles(const LinearWeight& w, const Capabilities& device) {
  if (num_tiles(w, 1) <= device.num_sms) return 1;
  return num_tiles(w, 2) > device.num_sms && w.n % (4 * kBf16Rows) == 0 ? 4 : 2;
}

Bf16Tile tile_of(int64_t tokens, const LinearWeight& w, const Capabilities& device) {
  return {token_product_rows(tokens), num_row_tiles(w, device)};
}
int64_t tiles_per_block(const LinearWeight& w, const Capabilities& device) {
  return std::max<int64_t>(ceil_div(num_tiles(w, num_row_tiles(w, device)), int64_t{device.num_sms}), 1);
}
// Whether all tiles run at once: one per SM, or several or large ones whose weights and tokens fit in its shared memory, and then their
// sums.
bool fit_at_once(int64_t tokens, const LinearWeight& w, const Capabilities& device) {
  const Bf16Tile tile = tile_of(tokens, w, device);
  const int64_t blocks = ceil_div(w.k, int64_t{kBf16Block}), tiles = tiles_per_block(w, device);
  if (tiles == 1 && tile.row_tiles <= 2) return true;
  return tiles * blocks <= kBf16MaxStages && blocks * tile.stage_bytes() >= tile.sum_bytes() &&
         Bf16LinearShared(tile, static_cast<int>(tiles * blocks)).bytes <= device.max_shared_bytes;
}

// x: [T, G, K].
Support support(const TensorView& x, const LinearWeight* w, bool shares_device, const Capabilities& device) {
  if (Support on_device = needs_sm90(device); !on_device) return on_device;
  if (w == nullptr) return Support::no("no weight");
  if (!w->weight.present() || w->weight.dtype != DType::bf16) return Support::no("needs a row-major bf16 weight");
  if (x.dtype != DType::bf16) return Support::no("needs bf16 activations");
  if (x.shape[0] > kBf16MaxTokens) return Support::no(fmt::format("takes at most {} tokens, got {}", kBf16MaxTokens, x.shape[0]));
  // With few tiles memory idles. But a single CTA that runs concurrently with other work, which keeps memory busy, costs only its SM.
  const int64_t tiles = num_tiles(*w, num_row_tiles(*w, device));
  const bool concurrent = tiles == 1 && shares_device && x.shape[0] > token_product_rows(1);
  if (!concurrent && (4 * tiles < device.num_sms || !fit_at_once(x.shape[0], *w, device))) {
    return Support::no(
        fmt::format("takes {} to {} tiles of up to {} features, or more of so few channels that shared memory holds them, got {} of {}",
                    (device.num_sms + 3) / 4, device.num_sms, 2 * kBf16Rows, tiles, w->k));
  }
  if (w->k % 8 != 0 || ops::row_alignment(x) != 16) return Support::no("needs rows at multiples of 16 bytes");
  return Support::yes();
}

// Scales of a quantised y; absent: y is not quantised.
struct Scales {
  TensorView values{};  // [T, G, n / 128]
  ActivationFormat format = ActivationFormat::bf16;
};

// x: [T, G, K]; y: [T, G, n].
void multiply(const TensorView& x, const LinearWeight& w, const TensorView& y, const Scales& scales, bool shares_device,
              const ExecutionContext& context) {
  if (y.numel() == 0) return;
  const Capabilities& device = capabilities(context.device);
  const int64_t num_tokens = x.shape[0];
  const Bf16Tile tile = tile_of(num_tokens, w, device);
  Bf16LinearArgs a{};
  set_output(a, y);
  set_output_scales(a, scales.values, scales.format == ActivationFormat::fp8_ue8m0);
  a.num_tokens = static_cast<int>(num_tokens);
  a.n = static_cast<int>(w.n);
  a.tiles_per_group = static_cast<int>(ceil_div(w.n, int64_t{tile.rows()}));
  a.tiles_per_block = static_cast<int>(tiles_per_block(w, device));
  a.num_tiles = static_cast<int>(num_tiles(w, tile.row_tiles));
  a.num_blocks = static_cast<int>(ceil_div(w.k, kBf16Block));
  const auto bytes_of = [&](int stages) { return Bf16LinearShared(tile, stages).bytes; };
  a.stages = std::min(kBf16MaxStages, a.tiles_per_block * a.num_blocks);
  const bool leaves_room = shares_device && tile.tokens == token_product_rows(1) && a.num_blocks > kLongBlocks;
  while (bytes_of(a.stages) > (leaves_room ? kSharedBytesConcurrent : device.max_shared_bytes)) --a.stages;
  if (a.stages < a.num_blocks) a.stages = a.stages / tile.slices() * tile.slices();  // a stage always belongs to the same warpgroups

  const CUtensorMap weights = tensor_map("weight", w.weight.data, DType::bf16, w.groups * w.n, w.k, w.k, tile.rows());
  const CUtensorMap tokens = tensor_map("x", x.data, x.shape[1], x.shape[0], w.k, x.stride[1], x.stride[0], tile.tokens);
  const void* kernel = bf16_linear_kernel(tile, a.y_scale != nullptr);
  allow_shared_bytes(kernel, static_cast<size_t>(device.max_shared_bytes));
  all_shared_memory(kernel);
  const LaunchConfig config({.grid = dim3(static_cast<unsigned>(ceil_div(a.num_tiles, a.tiles_per_block))),
                             .block = dim3(kBf16Threads),
                             .shared_bytes = static_cast<size_t>(bytes_of(a.stages)),
                             .cluster = a.y_scale != nullptr ? static_cast<unsigned>(tile.tiles_of_scale()) : 1},
                            native(context.stream), /*early=*/true);
  void* arguments[] = {const_cast<CUtensorMap*>(&weights), const_cast<CUtensorMap*>(&tokens), &a};
  check(cudaLaunchKernelExC(config.get(), kernel, arguments), "few_tokens_bf16_kernel");
}

void multiply_to_values(const TensorView& x, const LinearWeight& w, const TensorView& y, bool shares_device,
                        const ExecutionContext& context) {
  multiply(x, w, y, {}, shares_device, context);
}
using Product = Bf16Product<support, multiply_to_values>;

// With few tokens tiles of 64 features write bf16. A pair of CTAs would wait for two SMs; V4-Flash's layer takes 0.5 us more that way than
// with a quantiser.
bool fuses(const GroupedLinearParams& p, const Capabilities& device, std::string_view fusion) {
  if (fusion != "y_scale" || !support(p.x, p.weight, /*shares_device=*/false, device)) return false;
  const Bf16Tile tile = tile_of(p.x.shape[0], *p.weight, device);
  if (tile.row_tiles > 2 || tiles_per_block(*p.weight, device) > 1) return false;
  return tile.tiles_of_scale() == 1 || tile.tokens > token_product_rows(1);
}

Traits<GroupedLinearParams> grouped_product() {
  Traits<GroupedLinearParams> traits = Product::grouped();
  traits.fuses = fuses;
  traits.run = [](const GroupedLinearParams& p, const ExecutionContext& context) {
    multiply(p.x, *p.weight, p.y, {p.y_scale, p.y_format}, /*shares_device=*/false, context);
  };
  return traits;
}

}  // namespace

Implementation<LinearParams> hopper_bf16_linear() { return implementation<LinearParams>("cuda/sm90_bf16", Product::linear()); }
Implementation<GroupedLinearParams> hopper_bf16_grouped_linear() {
  return implementation<GroupedLinearParams>("cuda/sm90_bf16", grouped_product());
}

}  // namespace strata::cuda
