#include <algorithm>

#include "backends/opencl/kv_insert/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"
#include "formats/kv_rows.h"

namespace strata::opencl {
namespace {

// At most, per request and in total: enough groups to fill a GPU.
constexpr int64_t kRequestGroups = 1024, kGroups = 8192;

// Runs of eight e4m3 values per row; the other runs are bf16. Negative if rows have values of other formats.
int64_t e4m3_runs(const PagedCache& cache) {
  switch (cache.format) {
    case KvFormat::bf16: return 0;
    case KvFormat::fp8_tensor:
    case KvFormat::indexer_fp8: return cache.row_dim / 8;
    case KvFormat::fp8_ds_mla_v4: return kV4NopeDim / 8;
    case KvFormat::fp8_ds_mla: return kMlaLatentDim / 8;
    default: return -1;
  }
}

bool is_aligned(const DequantizeAndGatherKParams& p) {
  return p.cache.row_dim % 8 == 0 && pages_begin_at(p.cache, 16) && row_data_bytes(p.cache.format, p.cache.row_dim) % 16 == 0 &&
         rows_begin_at(p.out, 16);
}

void run(const DequantizeAndGatherKParams& p, Variant, const ExecutionContext& context) {
  const int64_t requests = p.seq_lens.shape[0], runs = ceil_div(p.cache.row_dim, 8), rows = kGatherItems / runs;
  if (requests == 0) return;
  const bool is_wide = is_aligned(p) && e4m3_runs(p.cache) >= 0;
  const int64_t group_rows = rows * (is_wide ? kGatherRows : 1);
  const int64_t groups = std::min(ceil_div(p.out.shape[1] - p.offset, group_rows), std::max(kRequestGroups, kGroups / requests));
  const GatherCall call{.seq_lens = address(p.seq_lens),
                        .gather_lens = address(p.gather_lens.present() ? p.gather_lens : p.seq_lens),
                        .block_table = address(p.block_table),
                        .out = address(p.out),
                        .block_stride = p.block_table.stride[0],
                        .out_stride = {p.out.stride[0], p.out.stride[1]},
                        .offset = p.offset,
                        .cache = cache_view(p.cache),
                        .page_size = divisor_of(p.cache.page_size),
                        .groups = static_cast<int32_t>(groups),
                        .runs = static_cast<int32_t>(runs),
                        .rows = static_cast<int32_t>(rows),
                        .e4m3_runs = static_cast<int32_t>(e4m3_runs(p.cache)),
                        .row_bytes = static_cast<int32_t>(row_data_bytes(p.cache.format, p.cache.row_dim))};
  launch(context, {"kv_gather", Variant::basic, is_wide ? "gather_aligned" : "gather"}, call,
         {.groups = {static_cast<size_t>(requests * groups), 1, 1}, .items = {kGatherItems, 1, 1}});
}

}  // namespace

std::vector<Implementation<DequantizeAndGatherKParams>> dequantize_and_gather_k() {
  return {implementation<DequantizeAndGatherKParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
