// Dense decode over the multi-query kernel of attn/: a query's key list is the first rows of its request, through the block table.
//
// Floor, D = 576 and Dv = 512: 2 * (D + Dv) flops a row and head; a cache row is read once per query token for all heads. Context 4096, 128
// heads, batch 4: 4.6 GFLOP against 19 MB.
#include <algorithm>

#include "backends/cpu/attn/attention_paths.h"
#include "backends/cpu/cpu_ops.h"

namespace strata::cpu {
namespace {

AttendShape shape_of(const DenseAttnDecodeParams& p) {
  AttendShape shape{.num_heads = static_cast<int>(p.q.shape[1]),
                    .head_dim = static_cast<int>(p.q.shape[2]),
                    .value_dim = static_cast<int>(p.out.shape[2]),
                    .softmax_scale = p.softmax_scale};
  shape.source[0] = source_of(p.cache);
  return shape;
}

// Key lists are cut by their length alone and combined in order, for any number of threads: every mode is batch-invariant.
AttendBatch batch_of(const DenseAttnDecodeParams& p, const Device& device, AttendPath path) {
  return {.path = path, .shape = shape_of(p), .num_queries = p.q.shape[0], .num_threads = threads_of(device)};
}

// Query token t of the batch with the rows that it sees.
AttendQuery query(const DenseAttnDecodeParams& p, int64_t t) {
  const int32_t* const start = p.query_start_loc.ptr<int32_t>();
  const int64_t requests = p.seq_lens.shape[0];
  // The last request that starts at t or before. Later requests without queries start after t or, all of them, also at t.
  const int64_t b = std::upper_bound(start, start + requests, start[0] + t) - start - 1;
  const int64_t later = int64_t{start[b + 1]} - start[0] - t - 1;  // queries of the request
  const int64_t visible = int64_t{p.seq_lens.ptr<int32_t>()[b]} - (p.causal ? later : 0);
  AttendQuery query{
      .q = p.q.row<uint16_t>(t), .q_head_stride = p.q.stride[1], .out = p.out.row<uint16_t>(t), .out_head_stride = p.out.stride[1]};
  query.keys[0] = {
      .count = std::max<int64_t>(visible, 0), .block_table = p.block_table.row<int32_t>(b), .block_table_len = p.block_table.shape[1]};
  if (p.lse.present()) query.lse = p.lse.row<float>(t);
  return query;
}

}  // namespace

std::vector<Implementation<DenseAttnDecodeParams>> dense_attn_decode() {
  using Params = DenseAttnDecodeParams;
  return attention_paths<Params>(
      [](const Params& p, AttendPath) { return dims_fit(shape_of(p)); },
      [](const Params& p, const Device& device, AttendPath path) { return attend_batch_workspace_bytes(batch_of(p, device, path)); },
      [](const Params& p, const Device& device, AttendPath path, std::byte* workspace) {
        attend_batch(
            batch_of(p, device, path), [&p](int64_t t) { return query(p, t); }, workspace);
      });
}

}  // namespace strata::cpu
