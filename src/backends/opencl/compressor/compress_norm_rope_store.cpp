#include <algorithm>
#include <cmath>

#include "backends/opencl/compressor/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

// Enough groups to fill a GPU. With more tokens, a group takes several: of a prompt's tokens only one in `ratio` completes an entry.
constexpr int64_t kFullGroups = 256;

int64_t workspace_bytes(const CompressNormRopeStoreParams& p, const Capabilities&) {
  return p.ratio == 128 ? p.positions.shape[0] * p.norm_weight.shape[0] * 4 : 0;
}

void run(const CompressNormRopeStoreParams& p, Variant variant, const ExecutionContext& context) {
  const int64_t tokens = p.positions.shape[0], dim = p.norm_weight.shape[0];
  const int64_t group_tokens = std::clamp<int64_t>(tokens / kFullGroups, 1, p.ratio);
  const CompressCall call{.block_table = address(p.block_table),
                          .token_to_req = address(p.token_to_req),
                          .positions = address(p.positions),
                          .state_slots = address(p.state_slots),
                          .out_slots = address(p.out_slots),
                          .norm_weight = address(p.norm_weight),
                          .cos_sin = address(p.cos_sin),
                          .pooled = address(context.workspace.data),
                          .block_stride = p.block_table.stride[0],
                          .cos_sin_stride = p.cos_sin.stride[0],
                          .num_tokens = tokens,
                          .state = cache_view(p.state),
                          .cache = cache_view(p.cache),
                          .dim = static_cast<int32_t>(dim),
                          .rotary = static_cast<int32_t>(p.cos_sin.shape[1]),
                          .tokens = static_cast<int32_t>(group_tokens),
                          .is_aligned = pages_begin_at(p.state, 16),
                          .eps = p.eps,
                          .hadamard_scale = p.hadamard ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))) : 0.0f};
  const auto groups = static_cast<size_t>(ceil_div(tokens, group_tokens)), items = static_cast<size_t>(dim / kEntryChannels);
  const bool is_wide = dim == 512;
  if (p.ratio == 4) {
    launch(context, {"compress", variant, is_wide ? "compress_4_512" : "compress_4_128"}, call,
           {.groups = {groups, 1, 1}, .items = {items, 1, 1}});
    return;
  }
  launch(context, {"compress", variant, "pool_128"}, call,
         {.groups = {groups * static_cast<size_t>(dim / kPoolSlice), 1, 1}, .items = {kPoolItems, 1, 1}});
  launch(context, {"compress", variant, is_wide ? "finish_128_512" : "finish_128_128"}, call,
         {.groups = {groups, 1, 1}, .items = {items, 1, 1}});
}

}  // namespace

std::vector<Implementation<CompressNormRopeStoreParams>> compress_norm_rope_store() {
  return {implementation<CompressNormRopeStoreParams>(Flavour::subgroup, {.workspace_bytes = workspace_bytes, .run = run}),
          implementation<CompressNormRopeStoreParams>(Flavour::basic, {.workspace_bytes = workspace_bytes, .run = run})};
}

}  // namespace strata::opencl
