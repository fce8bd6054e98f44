// Runs indexer_logits and topk_select on chunks of tokens. The workspace holds a chunk's logits.
#include <algorithm>

#include "backends/opencl/indexer/launch.h"
#include "backends/opencl/opencl_ops.h"
#include "contracts/fused_calls.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

constexpr int64_t kChunkFloats = int64_t{1} << 26;

// Floats per row of logits: rows begin at multiples of 16 bytes.
int64_t row_floats(const IndexerTopkParams& p) { return ceil_div(p.max_length, 4) * 4; }
int64_t chunk_tokens(const IndexerTopkParams& p) {
  return std::min(std::max<int64_t>(kChunkFloats / row_floats(p), 1), p.lengths.shape[0]);
}

int64_t workspace_bytes(const IndexerTopkParams& p, const Capabilities&) {
  if (ops::selects_all(p)) return 0;
  // At most kChunkFloats floats, or one row if that is longer.
  const int64_t row = row_floats(p), floats = std::min(p.lengths.shape[0] * row, std::max(kChunkFloats, row));
  return floats * static_cast<int64_t>(sizeof(float));
}

Support supports(const IndexerTopkParams& p, const Capabilities&) { return supports_selection(p.topk_indices.shape[1]); }

Support supports_matrix(const IndexerTopkParams& p, const Capabilities& c) {
  if (ops::selects_all(p)) return Support::no("scores nothing");
  const Support support = supports(p, c);
  return support ? supports_matrix_logits(p.cache) : support;
}

// `variant` is that of the logits; the selection always runs its basic kernel.
void run_with(const IndexerTopkParams& p, decltype(launch_indexer_logits)& launch_logits, Variant variant,
              const ExecutionContext& context) {
  const int64_t tokens = p.lengths.shape[0], chunk = chunk_tokens(p), row = row_floats(p);
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t count = std::min(chunk, tokens - first);
    TensorView logits = TensorView::contiguous(context.workspace.data, DType::f32, p.lengths.device, {count, row});
    logits.shape[1] = p.max_length;
    launch_logits({.q = p.q.slice(first, count),
                   .q_scale = p.q_scale.present() ? p.q_scale.slice(first, count) : TensorView{},
                   .weights = p.weights.slice(first, count),
                   .cache = p.cache,
                   .block_table = p.block_table,
                   .token_to_req = p.token_to_req.slice(first, count),
                   .lengths = p.lengths.slice(first, count),
                   .logits = logits},
                  static_cast<int32_t>(p.topk_indices.shape[1]), variant, context);
    launch_topk_select({.logits = logits, .lengths = p.lengths.slice(first, count), .topk_indices = p.topk_indices.slice(first, count)},
                       Variant::basic, context);
  }
}

void run(const IndexerTopkParams& p, Variant variant, const ExecutionContext& context) {
  if (ops::selects_all(p)) return launch_topk_select({.lengths = p.lengths, .topk_indices = p.topk_indices}, variant, context);
  run_with(p, launch_indexer_logits, variant, context);
}
void run_matrix(const IndexerTopkParams& p, Variant variant, const ExecutionContext& context) {
  run_with(p, launch_matrix_logits, variant, context);
}

}  // namespace

std::vector<Implementation<IndexerTopkParams>> indexer_topk() {
  return with_matrix<IndexerTopkParams>({.supports = supports, .workspace_bytes = workspace_bytes, .run = run},
                                        {.supports = supports_matrix, .workspace_bytes = workspace_bytes, .run = run_matrix});
}

}  // namespace strata::opencl
