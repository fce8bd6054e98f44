#include <bit>

#include "backends/opencl/indexer/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

constexpr int64_t kValues = 8;  // per item
constexpr int64_t kWideDim = 128, kWideValues = 16;

QueryValues values_of(DType dtype) {
  return dtype == DType::e4m3 ? QueryValues::e4m3 : dtype == DType::u8 ? QueryValues::mxfp4 : QueryValues::bf16;
}

// The kernel for heads of kWideDim values. A pair that begins at an even value belongs to one item.
const char* wide_kernel(const IndexerQueryCall& call) {
  const bool is_split = call.rotary > 0 && (call.is_half_split || call.first_rotary % 2 != 0);
  return is_split ? "indexer_query_128_split" : "indexer_query_128";
}

// Whether runs of eight values begin at multiples of their size in bytes.
bool is_aligned(const IndexerQueryParams& p) {
  const uint64_t out_bytes = p.q_out.dtype == DType::bf16 ? 16 : p.q_out.dtype == DType::e4m3 ? 8 : 4;
  return rows_begin_at(p.q, 16) && p.q.shape[2] % kValues == 0 && address(p.q_out) % out_bytes == 0;
}

void run(const IndexerQueryParams& p, Variant variant, const ExecutionContext& context) {
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1], dim = p.q.shape[2];
  const int64_t rotary = p.cos_sin.present() ? p.cos_sin.shape[1] : 0;
  const auto items = std::bit_ceil(static_cast<uint64_t>(ceil_div(dim, kValues)));
  const IndexerQueryCall call{.q = address(p.q),
                              .weights = address(p.weights),
                              .positions = address(p.positions),
                              .cos_sin = address(p.cos_sin),
                              .q_out = address(p.q_out),
                              .q_scale_out = address(p.q_scale_out),
                              .weights_out = address(p.weights_out),
                              .token_stride = p.q.stride[0],
                              .head_stride = p.q.stride[1],
                              .weights_stride = p.weights.stride[0],
                              .cos_sin_stride = p.cos_sin.stride[0],
                              .heads = static_cast<int32_t>(heads),
                              .dim = static_cast<int32_t>(dim),
                              .items_log2 = std::countr_zero(items),
                              .rotary = static_cast<int32_t>(rotary),
                              .first_rotary = static_cast<int32_t>(p.rope_slice == RopeSlice::last ? dim - rotary : 0),
                              .is_half_split = p.pairing == RopePairing::half_split,
                              .is_hadamard = p.hadamard,
                              .is_aligned = is_aligned(p),
                              .has_bf16_weights = p.weights.dtype == DType::bf16,
                              .values = values_of(p.q_out.dtype),
                              .softmax_scale = p.softmax_scale,
                              .head_scale = p.head_scale,
                              .amax_floor = p.amax_floor};
  const bool is_wide = dim == kWideDim;
  const int64_t group_heads = kQueryItems / (is_wide ? kWideDim / kWideValues : static_cast<int64_t>(items));
  launch(context, {"indexer_query", variant, is_wide ? wide_kernel(call) : "indexer_query"}, call,
         {.groups = {static_cast<size_t>(tokens), static_cast<size_t>(ceil_div(heads, group_heads)), 1}, .items = {kQueryItems, 1, 1}});
}

}  // namespace

std::vector<Implementation<IndexerQueryParams>> indexer_query() {
  return {implementation<IndexerQueryParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
