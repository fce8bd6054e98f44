// Both linear ops and quantize_rows. Up to 8 tokens use a kernel that reads the weight once (linear_few.clcpp); more are cut into tiles
// (linear_tiles.clcpp). On the matrix engine the limit is 16 tokens (linear_few_xmx.clcpp). Its tiles multiply the operands by scales that
// are powers of two (linear_tiles_xmx.clcpp), and the sums by other scales (linear_scaled_xmx.clcpp).
#include <algorithm>
#include <bit>
#include <limits>

#include "backends/opencl/linear/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/arena.h"
#include "core/ceil_div.h"
#include "formats/quantize.h"

namespace strata::opencl {
namespace {

constexpr int64_t kMostExtent = 1 << 28;  // of n and k: the bytes of four weight rows fit 32 bits
// k is split until the tiles fill a device. A split has at least kLeastSplit channels, to be worth storing its sums.
constexpr int64_t kWantedTiles = 256, kMostSplits = 16, kLeastSplit = 512;
constexpr int64_t kWantedSubgroups = 2048;  // for few tokens on the matrix engine

bool is_aligned(const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0; }
// Whether the address and all strides are multiples of `elements` elements of `size` bytes.
bool begins_at(const void* data, int64_t size, int64_t elements, std::initializer_list<int64_t> strides) {
  return is_aligned(data, size * elements) &&
         std::all_of(strides.begin(), strides.end(), [elements](int64_t stride) { return stride % elements == 0; });
}
int64_t size_in_bytes(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

// A call of either op; linear has one group.
struct Product {
  TensorView x, x_scale, y;  // [T, G, ...]
  const LinearWeight* weight = nullptr;
  ActivationFormat activation = ActivationFormat::bf16;  // of a bf16 x: the format it is quantised to first

  int64_t tokens() const { return x.shape[0]; }
  bool quantises() const { return x.dtype == DType::bf16 && activation != ActivationFormat::bf16; }
};

// Views [T, K] as [T, 1, K].
TensorView with_one_group(const TensorView& v) {
  if (!v.present()) return v;
  TensorView result = v;
  result.rank = 3;
  result.shape = {v.shape[0], 1, v.shape[1]};
  result.stride = {v.stride[0], 0, 1};
  return result;
}
Product product_of(const LinearParams& p) {
  return {with_one_group(p.x), with_one_group(p.x_scale), with_one_group(p.y), p.weight, p.activation};
}
Product product_of(const GroupedLinearParams& p) { return {p.x, p.x_scale, p.y, p.weight}; }

// The tiles and splits of a product.
struct Tiling {
  int64_t tile_tokens, tiles, splits, split_k;

  explicit Tiling(const Product& p) {
    const LinearWeight& w = *p.weight;
    tile_tokens = p.tokens() <= 16 ? 16 : p.tokens() <= 32 ? 32 : kMostTileTokens;
    tiles = ceil_div(p.tokens(), tile_tokens) * ceil_div(w.n, kTileFeatures) * w.groups;
    const int64_t wanted = std::clamp<int64_t>(std::min(kWantedTiles / std::max<int64_t>(tiles, 1), w.k / kLeastSplit), 1, kMostSplits);
    split_k = ceil_div(ceil_div(w.k, wanted), kTileDepth) * kTileDepth;
    splits = ceil_div(w.k, split_k);
  }
};

// Elements of the splits' sums, an upper bound for this number of tokens and fewer: splits * tiles is at most kWantedTiles.
int64_t sum_elements(const Product& p) {
  const LinearWeight& w = *p.weight;
  const bool is_split = w.k >= 2 * kLeastSplit && 2 * ceil_div(w.n, kTileFeatures) * w.groups <= kWantedTiles;
  if (p.tokens() <= kFewTokens || !is_split) return 0;
  const int64_t most = kWantedTiles * kTileFeatures * kMostTileTokens;
  return std::min(most, kMostSplits * std::min(p.tokens(), most) * w.n * w.groups);
}

struct Memory {
  TensorView values, scale, sums;

  Memory(const Product& p, Arena& arena) {
    if (p.quantises()) {
      // Few tokens are stored as bf16, which takes fewer instructions to read. The workspace does not shrink with more tokens.
      const int64_t k = p.weight->k, pitch = ceil_div(k, kChunk) * kChunk;
      const bool is_few = p.tokens() <= kFewTokens;
      values =
          arena.tensor(is_few ? DType::bf16 : DType::e4m3, {is_few ? p.tokens() : std::max<int64_t>(p.tokens(), 2 * kFewTokens), 1, pitch});
      scale = arena.tensor(DType::f32, {p.tokens(), 1, activation_blocks(k)});
    }
    if (const int64_t elements = sum_elements(p); elements > 0) sums = arena.tensor(DType::f32, {elements});
  }
};

void quantize(const TensorView& x, int64_t columns, ActivationFormat format, const TensorView& values, const TensorView& scale,
              const ExecutionContext& context) {
  const QuantizeCall call{.x = address(x),
                          .values = address(values),
                          .scale = address(scale),
                          .x_stride = x.stride[0],
                          .values_stride = values.stride[0],
                          .scale_stride = scale.stride[0],
                          .tokens = x.shape[0],
                          .columns = static_cast<int32_t>(columns),
                          .is_ue8m0 = format == ActivationFormat::fp8_ue8m0,
                          .is_aligned = begins_at(x.data, 2, kChunk, {x.stride[0]}) &&
                                        begins_at(values.data, size_in_bytes(values.dtype), kChunk, {values.stride[0]}),
                          .bf16_values = values.dtype == DType::bf16};
  constexpr int64_t kGroupBlocks = kQuantizeItems * kChunk / kActivationBlock;
  const auto groups = static_cast<size_t>(ceil_div(x.shape[0] * activation_blocks(columns), kGroupBlocks));
  launch(context, {"quantize_rows", Variant::basic, "quantize_rows"}, call, {.groups = {groups, 1, 1}, .items = {kQuantizeItems, 1, 1}});
}

ProductCall call_of(const Product& p) {
  const LinearWeight& w = *p.weight;
  const int64_t x_size = size_in_bytes(p.x.dtype), y_size = size_in_bytes(p.y.dtype), w_size = size_in_bytes(w.weight.dtype);
  const auto block_k = static_cast<uint64_t>(std::min(w.block_k, kMostExtent));
  return {.x = {.values = address(p.x),
                .scale = address(p.x_scale),
                .token = p.x.stride[0],
                .group = p.x.stride[1],
                .scale_token = p.x_scale.stride[0],
                .scale_group = p.x_scale.stride[1],
                .is_e4m3 = p.x.dtype == DType::e4m3,
                .is_aligned = begins_at(p.x.data, x_size, kChunk, {p.x.stride[0], p.x.stride[1]})},
          .weight = {.values = address(w.weight),
                     .scale = address(w.scale),
                     .scale_row = w.scale.stride[0],
                     .block_n = std::min(w.block_n, w.groups * w.n),
                     .block_k = static_cast<int32_t>(block_k),
                     .block_k_bits = std::has_single_bit(block_k) ? std::countr_zero(block_k) : -1,
                     .is_e4m3 = w.weight.dtype == DType::e4m3,
                     .is_aligned = begins_at(w.weight.data, w_size, kChunk, {w.k}),
                     .is_chunked = w.block_k % kChunk == 0},
          .y = address(p.y),
          .y_token = p.y.stride[0],
          .y_group = p.y.stride[1],
          .tokens = p.tokens(),
          .groups = static_cast<int32_t>(w.groups),
          .n = static_cast<int32_t>(w.n),
          .k = static_cast<int32_t>(w.k),
          .y_is_f32 = p.y.dtype == DType::f32,
          .y_is_aligned = begins_at(p.y.data, y_size, 4, {p.y.stride[0], p.y.stride[1]}),
          .splits = 1,
          .split_k = 0,
          .sums = 0,
          .few_slices = 1};
}

void run_few(const ProductCall& call, Variant variant, const ExecutionContext& context) {
  static constexpr const char* kNames[2][2][3] = {
      {{"bf16_bf16_1", "bf16_bf16_4", "bf16_bf16_8"}, {"bf16_e4m3_1", "bf16_e4m3_4", "bf16_e4m3_8"}},
      {{"e4m3_bf16_1", "e4m3_bf16_4", "e4m3_bf16_8"}, {"e4m3_e4m3_1", "e4m3_e4m3_4", "e4m3_e4m3_8"}}};
  const char* name = kNames[call.x.is_e4m3][call.weight.is_e4m3][call.tokens == 1 ? 0 : call.tokens <= 4 ? 1 : 2];
  const auto groups = static_cast<size_t>(ceil_div(call.n, kFewFeatures) * call.groups);
  launch(context, {"linear_few", variant, name}, call, {.groups = {groups, 1, 1}, .items = {kFewItems, 1, 1}});
}

void run_tiles(ProductCall call, const Tiling& tiling, const TensorView& sums, Variant variant, const ExecutionContext& context) {
  call.splits = static_cast<int32_t>(tiling.splits);
  call.split_k = static_cast<int32_t>(tiling.split_k);
  call.sums = address(sums);
  const char* name = tiling.tile_tokens == 16 ? "tile16" : tiling.tile_tokens == 32 ? "tile32" : "tile64";
  launch(context, {"linear_tiles", variant, name}, call,
         {.groups = {static_cast<size_t>(tiling.tiles * tiling.splits), 1, 1}, .items = {kTileItems, 1, 1}});
  if (tiling.splits == 1) return;
  const auto groups = static_cast<size_t>(ceil_div(call.tokens * call.groups * call.n, kSumItems));
  launch(context, {"linear_tiles", variant, "add_splits"}, call, {.groups = {groups, 1, 1}, .items = {kSumItems, 1, 1}});
}

template <class Params>
Support supports(const Params& p, const Capabilities&) {
  if (p.weight == nullptr) return Support::yes();
  const LinearWeight& w = *p.weight;
  if (w.packed.present()) return Support::no("reads row-major weights only, this one is packed for " + w.packing);
  if (w.n > kMostExtent || w.k > kMostExtent || w.groups > kMostExtent)
    return Support::no("takes at most 2^28 groups, features and channels");
  if (p.x.shape[0] > 1 && std::max(p.x.stride[0], p.x_scale.stride[0]) > kMostExtent) {
    return Support::no("takes rows of x and of its scales at most 2^28 elements apart");
  }
  return Support::yes();
}

template <class Params>
int64_t workspace_bytes(const Params& params, const Capabilities&) {
  Arena arena(params.x.device);
  Memory(product_of(params), arena);
  return arena.peak();
}

template <class Params>
void run(const Params& params, Variant variant, const ExecutionContext& context) {
  Product p = product_of(params);
  if (p.tokens() == 0 || p.x.shape[1] == 0) return;
  Arena arena(context.device.id(), context.workspace);
  const Memory memory(p, arena);
  if (p.quantises()) {
    quantize(p.x, p.weight->k, p.activation, memory.values, memory.scale, context);
    p.x = memory.values;
    p.x.shape[0] = params.x.shape[0];
    p.x_scale = memory.scale;
  }
  const ProductCall call = call_of(p);
  if (p.tokens() <= kFewTokens) return run_few(call, variant, context);
  run_tiles(call, Tiling(p), memory.sums, variant, context);
}

// For the matrix engine: offsets within a tile fit 32 bits. Rows of the weight and of x must consist of whole chunks.
constexpr int64_t kMostMatrixExtent = 1 << 24;

// Whether the matrix engine can compute the product. If x must be quantised, quantize_rows does it beforehand.
template <class Params>
Support supports_matrix(const Params& params, const Capabilities& c) {
  if (Support support = supports(params, c); !support || params.weight == nullptr) return support;
  const Product p = product_of(params);
  const LinearWeight& w = *p.weight;
  if (w.k % kChunk != 0) return Support::no("needs a multiple of 8 channels on the matrix engine");
  if (!begins_at(w.weight.data, size_in_bytes(w.weight.dtype), kChunk, {})) {
    return Support::no("needs a weight that begins at a multiple of 8 elements on the matrix engine");
  }
  if (!p.quantises() && !begins_at(p.x.data, size_in_bytes(p.x.dtype), kChunk, {p.x.stride[0], p.x.stride[1]})) {
    return Support::no("needs rows of x that begin at multiples of 8 elements on the matrix engine");
  }
  if (w.k > kMostMatrixExtent || p.x.stride[0] > kMostMatrixExtent || p.x_scale.stride[0] > kMostMatrixExtent) {
    return Support::no("takes rows of at most 2^24 elements on the matrix engine");
  }
  if (w.groups * w.n > std::numeric_limits<int32_t>::max() || p.tokens() > std::numeric_limits<int32_t>::max()) {
    return Support::no("takes fewer than 2^31 tokens, and features of all groups, on the matrix engine");
  }
  if (w.weight.dtype == DType::bf16) return Support::yes();
  if (w.block_n % kMatrixRowsOfScale != 0 || (w.groups > 1 && w.n % kMatrixRowsOfScale != 0)) {
    return Support::no("needs scales of 8 features at least on the matrix engine");
  }
  if (w.block_k % kActivationBlock != 0 && w.block_k < w.k) {
    return Support::no("needs scales of multiples of 128 channels on the matrix engine");
  }
  return Support::yes();
}

// Whether scales multiply the operands, because all are powers of two. quantize_rows has then multiplied x by its scales.
bool has_exact_operands(const Product& p) {
  const bool is_x_exact = !p.x_scale.present() || p.activation == ActivationFormat::fp8_ue8m0;
  return is_x_exact && (p.weight->weight.dtype == DType::bf16 || p.weight->power_of_two_scales);
}

struct MatrixMemory {
  TensorView values, scale, sums;

  MatrixMemory(const Product& p, Arena& arena) {
    if (p.quantises()) {
      values = arena.tensor(DType::bf16, {p.tokens(), 1, p.weight->k});
      if (p.activation != ActivationFormat::fp8_ue8m0) scale = arena.tensor(DType::f32, {p.tokens(), 1, activation_blocks(p.weight->k)});
    }
    if (const int64_t elements = sum_elements(p); elements > 0) sums = arena.tensor(DType::f32, {elements});
  }

 private:
  // As in Tiling.
  static int64_t sum_elements(const Product& p) {
    const LinearWeight& w = *p.weight;
    const bool is_split = w.k >= 2 * kLeastSplit && 2 * ceil_div(w.n, kMatrixFeatures) * w.groups <= kWantedTiles;
    if (p.tokens() <= kFewMatrixTokens || !is_split) return 0;
    const int64_t most = kWantedTiles * kMatrixFeatures * kMostMatrixTileTokens;
    return std::min(most, kMostSplits * std::min(p.tokens(), most) * w.n * w.groups);
  }
};

void run_few_matrix(ProductCall call, Variant variant, int64_t width, const ExecutionContext& context) {
  static constexpr const char* kNames[2][2][2] = {
      {{"few_bf16_bf16_8_xmx", "few_bf16_bf16_16_xmx"}, {"few_bf16_e4m3_8_xmx", "few_bf16_e4m3_16_xmx"}},
      {{"few_e4m3_bf16_8_xmx", "few_e4m3_bf16_16_xmx"}, {"few_e4m3_e4m3_8_xmx", "few_e4m3_e4m3_16_xmx"}}};
  const char* name = kNames[call.x.is_e4m3][call.weight.is_e4m3][call.tokens <= 8 ? 0 : 1];
  // k is split among sub-groups if each then has several blocks, or if there are few features.
  const int64_t features = call.weight.is_e4m3 ? kFewE4m3Features : kFewBf16Features, blocks = ceil_div(call.k, kActivationBlock);
  const int64_t sets = ceil_div(call.n, features) * call.groups;
  int64_t slices = 1;
  while (slices < kFewSubgroups && 2 * slices <= blocks && (8 * slices <= blocks || sets * slices < kWantedSubgroups)) slices *= 2;
  call.few_slices = static_cast<int32_t>(slices);
  const auto groups = static_cast<size_t>(ceil_div(call.n, features * (kFewSubgroups / slices)) * call.groups);
  launch(context, {"linear_few_xmx", variant, name}, call,
         {.groups = {groups, 1, 1}, .items = {static_cast<size_t>(kFewSubgroups * width), 1, 1}});
}

void run_tiles_matrix(ProductCall call, bool is_exact, const TensorView& sums, Variant variant, int64_t width,
                      const ExecutionContext& context) {
  static constexpr const char* kScaled[2][2] = {{"scaled_bf16_bf16_xmx", "scaled_bf16_e4m3_xmx"},
                                                {"scaled_e4m3_bf16_xmx", "scaled_e4m3_e4m3_xmx"}};
  static constexpr const char* kExact[2][2][2] = {
      {{"tile_bf16_bf16_32_xmx", "tile_bf16_bf16_128_xmx"}, {"tile_bf16_e4m3_32_xmx", "tile_bf16_e4m3_128_xmx"}},
      {{"tile_e4m3_bf16_32_xmx", "tile_e4m3_bf16_128_xmx"}, {"tile_e4m3_e4m3_32_xmx", "tile_e4m3_e4m3_128_xmx"}}};
  const bool is_small = call.tokens <= 64;
  const int64_t tile_tokens = !is_exact ? kScaledTileTokens : is_small ? kSubgroupTokens : kMostMatrixTileTokens;
  const int64_t subgroups = is_exact && is_small ? 8 : 16;
  const int64_t tiles = ceil_div(call.tokens, tile_tokens) * ceil_div(call.n, kMatrixFeatures) * call.groups;
  const int64_t wanted = std::clamp<int64_t>(std::min(kWantedTiles / tiles, call.k / kLeastSplit), 1, kMostSplits);
  const int64_t split_k = ceil_div(ceil_div(call.k, wanted), kActivationBlock) * kActivationBlock;
  call.split_k = static_cast<int32_t>(split_k);
  call.splits = static_cast<int32_t>(ceil_div(call.k, split_k));
  call.sums = address(sums);
  const char* name =
      is_exact ? kExact[call.x.is_e4m3][call.weight.is_e4m3][is_small ? 0 : 1] : kScaled[call.x.is_e4m3][call.weight.is_e4m3];
  launch(context, {is_exact ? "linear_tiles_xmx" : "linear_scaled_xmx", variant, name}, call,
         {.groups = {static_cast<size_t>(tiles * call.splits), 1, 1}, .items = {static_cast<size_t>(subgroups * width), 1, 1}});
  if (call.splits == 1) return;
  const auto groups = static_cast<size_t>(ceil_div(call.tokens * call.groups * call.n, kSumItems));
  launch(context, {"linear_tiles_xmx", variant, "add_splits"}, call, {.groups = {groups, 1, 1}, .items = {kSumItems, 1, 1}});
}

template <class Params>
int64_t matrix_workspace_bytes(const Params& params, const Capabilities&) {
  Arena arena(params.x.device);
  MatrixMemory(product_of(params), arena);
  return arena.peak();
}

template <class Params>
void run_matrix(const Params& params, Variant variant, const ExecutionContext& context) {
  Product p = product_of(params);
  if (p.tokens() == 0 || p.x.shape[1] == 0) return;
  Arena arena(context.device.id(), context.workspace);
  const MatrixMemory memory(p, arena);
  if (p.quantises()) {
    quantize(p.x, p.weight->k, p.activation, memory.values, memory.scale, context);
    p.x = memory.values;
    p.x_scale = memory.scale;
  }
  const ProductCall call = call_of(p);
  const int64_t width = capabilities(context.device).subgroup_size;
  if (p.tokens() <= kFewMatrixTokens) return run_few_matrix(call, variant, width, context);
  run_tiles_matrix(call, has_exact_operands(p), memory.sums, variant, width, context);
}

void run_quantize_rows(const ops::QuantizeRowsParams& p, Variant, const ExecutionContext& context) {
  quantize(p.x, p.x.shape[1], p.format, p.values, p.scale, context);
}

template <class Params>
std::vector<Implementation<Params>> implementations() {
  const Traits<Params> traits{.supports = supports<Params>, .workspace_bytes = workspace_bytes<Params>, .run = run<Params>};
  const Traits<Params> matrix{
      .supports = supports_matrix<Params>, .workspace_bytes = matrix_workspace_bytes<Params>, .run = run_matrix<Params>};
  return {implementation<Params>(Flavour::xmx, matrix), implementation<Params>(Flavour::subgroup, traits),
          implementation<Params>(Flavour::basic, traits), implementation<Params>(Flavour::xmx_emulated, matrix)};
}

}  // namespace

std::vector<Implementation<LinearParams>> linear() { return implementations<LinearParams>(); }
std::vector<Implementation<GroupedLinearParams>> grouped_linear() { return implementations<GroupedLinearParams>(); }
std::vector<Implementation<ops::QuantizeRowsParams>> quantize_rows() {
  return {implementation<ops::QuantizeRowsParams>(Flavour::basic, {.run = run_quantize_rows})};
}

}  // namespace strata::opencl
