#include <fmt/format.h>

#include <algorithm>

#include "backends/opencl/indexer/call.h"
#include "backends/opencl/indexer/launch.h"
#include "backends/opencl/opencl_ops.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

IndexerLogitsCall call_of(const IndexerLogitsParams& p, int32_t skip) {
  const KvFormat format = p.cache.format;
  return {.q = address(p.q),
          .q_scale = address(p.q_scale),
          .weights = address(p.weights),
          .cache = address(p.cache.data),
          .block_table = address(p.block_table),
          .token_to_req = address(p.token_to_req),
          .lengths = address(p.lengths),
          .logits = address(p.logits),
          .page_stride = p.cache.page_stride,
          .table_stride = p.block_table.stride[0],
          .logits_stride = p.logits.stride[0],
          .page_size = divisor_of(p.cache.page_size),
          .row_bytes = static_cast<int32_t>(row_data_bytes(format, p.cache.row_dim)),
          .scale_bytes = static_cast<int32_t>(row_scale_bytes(format)),
          .heads = static_cast<int32_t>(p.q.shape[1]),
          .dim = p.cache.row_dim,
          .skip = skip,
          .format = format == KvFormat::indexer_fp8     ? KeyFormat::e4m3
                    : format == KvFormat::indexer_mxfp4 ? KeyFormat::mxfp4
                                                        : KeyFormat::bf16};
}

// Groups per token: enough for several per compute unit. The device knows the lengths: groups past a token's length return immediately.
int64_t groups_of(int64_t tiles, int64_t wanted, int64_t tokens) { return std::min({tiles, ceil_div(wanted, tokens), int64_t{65535}}); }

}  // namespace

void launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, Variant variant, const ExecutionContext& context) {
  const int64_t tokens = p.q.shape[0], columns = p.logits.shape[1], units = capabilities(context.device).compute_units;
  if (tokens == 0 || columns == 0) return;
  const bool is_few = tokens * ceil_div(columns, kManyKeys) < 2 * units;
  const int64_t keys = is_few ? kFewKeys : kManyKeys;
  const int64_t groups = groups_of(ceil_div(columns, keys), 64 * units, tokens);
  launch(context, {"indexer_logits", variant, is_few ? "indexer_logits_few" : "indexer_logits_many"}, call_of(p, skip),
         {.groups = {static_cast<size_t>(tokens), static_cast<size_t>(groups), 1},
          .items = {static_cast<size_t>(is_few ? kFewItems : kManyItems), 1, 1}});
}

Support supports_matrix_logits(const PagedCache& keys) {
  if (keys.row_dim != kMatrixLogitsDim) return Support::no(fmt::format("needs keys of 128 dimensions, has {}", keys.row_dim));
  if (keys.page_stride % 4 != 0)
    return Support::no(fmt::format("needs pages at multiples of 4 bytes, has a stride of {}", keys.page_stride));
  return Support::yes();
}

void launch_matrix_logits(const IndexerLogitsParams& p, int32_t skip, Variant variant, const ExecutionContext& context) {
  // Addresses are unknown when a plan is made.
  if (address(p.q) % 4 != 0 || address(p.cache.data) % 4 != 0) return launch_indexer_logits(p, skip, Variant::basic, context);
  const int64_t tokens = p.q.shape[0], columns = p.logits.shape[1];
  if (tokens == 0 || columns == 0) return;
  const Capabilities& c = capabilities(context.device);
  const IndexerLogitsCall call = call_of(p, skip);
  const bool is_few = call.heads <= 32;  // local memory for 32 heads, otherwise 64
  const char* kernel = call.format == KeyFormat::e4m3    ? is_few ? "indexer_logits_e4m3_32_xmx" : "indexer_logits_e4m3_64_xmx"
                       : call.format == KeyFormat::mxfp4 ? is_few ? "indexer_logits_mxfp4_32_xmx" : "indexer_logits_mxfp4_64_xmx"
                       : is_few                          ? "indexer_logits_bf16_32_xmx"
                                                         : "indexer_logits_bf16_64_xmx";
  // A compute unit is a vector engine, which runs 4 or 8 sub-groups at a time.
  const int64_t groups = groups_of(ceil_div(columns, kMatrixLogitsSubgroups * kMatrixLogitsKeys), 4 * c.compute_units, tokens);
  launch(context, {"indexer_logits_xmx", variant, kernel}, call,
         {.groups = {static_cast<size_t>(tokens), static_cast<size_t>(groups), 1},
          .items = {static_cast<size_t>(kMatrixLogitsSubgroups * c.subgroup_size), 1, 1}});
}

namespace {

void run(const IndexerLogitsParams& p, Variant variant, const ExecutionContext& context) { launch_indexer_logits(p, 0, variant, context); }
void run_matrix(const IndexerLogitsParams& p, Variant variant, const ExecutionContext& context) {
  launch_matrix_logits(p, 0, variant, context);
}
Support supports_matrix(const IndexerLogitsParams& p, const Capabilities&) { return supports_matrix_logits(p.cache); }

}  // namespace

std::vector<Implementation<IndexerLogitsParams>> indexer_logits() {
  return with_matrix<IndexerLogitsParams>({.run = run}, {.supports = supports_matrix, .run = run_matrix});
}

}  // namespace strata::opencl
