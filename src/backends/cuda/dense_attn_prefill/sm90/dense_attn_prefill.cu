// dense_attn_prefill on Hopper: supported calls and the launch.
#include <algorithm>
#include <numeric>
#include <string>

#include "backends/cuda/dense_attn_prefill/impls.h"
#include "backends/cuda/dense_attn_prefill/sm90/kernel.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/tensor_map.h"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

using namespace dense_prefill;

int64_t tiles_of(const DenseAttnPrefillParams& p) { return ceil_div(std::min(p.max_query_len, p.q.shape[0]), int64_t{kQueries}); }
int64_t requests_of(const DenseAttnPrefillParams& p) { return p.query_start_loc.present() ? p.query_start_loc.shape[0] - 1 : 1; }

Support supports(const DenseAttnPrefillParams& p, const Capabilities& c) {
  if (Support sm90 = needs_sm90(c); !sm90) return sm90;
  const int64_t nope = p.k_nope.shape[2], rotary = p.k_pe.shape[1], value = p.v.shape[2];
  if (nope != kNopeDim || rotary != kRotaryDim || value != kValueDim) {
    return Support::no("needs 128 + 64 key dimensions and 128 value dimensions, has " + std::to_string(nope) + " + " +
                       std::to_string(rotary) + " and " + std::to_string(value));
  }
  for (const TensorView* rows : {&p.q, &p.k_nope, &p.k_pe, &p.v}) {
    if (!strides_aligned(*rows)) return Support::no("needs rows at multiples of 16 bytes");
  }
  if (p.q.shape[0] == 0 || p.k_nope.shape[0] == 0) return Support::no("needs queries and keys");
  if (requests_of(p) * p.q.shape[1] * tiles_of(p) >= int64_t{1} << 31) return Support::no("too many queries");
  return Support::yes();
}

CUtensorMap map_of(const char* name, const TensorView& v, int64_t dims) {
  return sm90::column_groups_map(name, v.data, v.shape[1], v.shape[0], dims, v.stride[1], v.stride[0], kQueries,
                                 static_cast<int>(dims / kChunkDims));
}

void run(const DenseAttnPrefillParams& p, const ExecutionContext& context) {
  // The copy engine (TMA) cannot read such rows. Addresses are not known when a plan is made.
  for (const TensorView* rows : {&p.q, &p.k_nope, &p.k_pe, &p.v}) {
    if (!begins_aligned(rows->data)) return dense_prefill_run(dense_prefill_of(p), context);
  }
  const int64_t heads = p.q.shape[1], tiles = tiles_of(p), sms = capabilities(context.device).num_sms;
  const int64_t items = requests_of(p) * heads * tiles;
  if (items == 0) return;
  const int64_t group = std::gcd(heads, int64_t{8});
  const Args a{
      .call = dense_prefill_of(p),
      .q = map_of("dense_attn_prefill: q", p.q, kNopeDim + kRotaryDim),
      .k_nope = map_of("dense_attn_prefill: k_nope", p.k_nope, kNopeDim),
      .k_pe = sm90::tensor_map("dense_attn_prefill: k_pe", p.k_pe.data, DType::bf16, p.k_pe.shape[0], kRotaryDim, p.k_pe.stride[0], kKeys),
      .v = map_of("dense_attn_prefill: v", p.v, kValueDim),
      .num_items = static_cast<int32_t>(items),
      .next_item = static_cast<uint32_t*>(context.workspace.data),
      .items_of_request = Divisor(static_cast<int32_t>(heads * tiles)),
      .items_of_group = Divisor(static_cast<int32_t>(group * tiles)),
      .heads_of_group = Divisor(static_cast<int32_t>(group)),
      .tiles = static_cast<int32_t>(tiles)};
  allow_shared_bytes(dense_prefill_sm90_kernel, sizeof(SharedMemory));
  launch_early("dense_prefill_sm90_kernel", dense_prefill_sm90_kernel,
               {.grid = dim3(static_cast<unsigned>(std::min(items, sms))), .block = dim3(kThreads), .shared_bytes = sizeof(SharedMemory)},
               context, a);
}

}  // namespace

Implementation<DenseAttnPrefillParams> dense_attn_prefill_sm90() {
  return implementation<DenseAttnPrefillParams>(
      "cuda/sm90", {.supports = supports,
                    .workspace_bytes = [](const DenseAttnPrefillParams&, const Capabilities&) { return sizeof(uint32_t); },
                    .run = run});
}

}  // namespace strata::cuda
