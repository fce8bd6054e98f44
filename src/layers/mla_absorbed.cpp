#include "layers/mla_absorbed.h"

#include <algorithm>

#include "batch/decode_bounds.h"
#include "layers/launch_order/prefill.h"
#include "layers/one_query_each.h"

namespace strata {

MlaAbsorbedAttention::MlaAbsorbedAttention(const LayerContext& context, const WeightLoader& loader, const MlaShape& shape)
    : shape_(shape), device_(context.device), options_(context.options) {
  // A head has P rows of its key, then V rows of its value (MLA 3). Products with an absorbed weight have bf16 inputs and outputs.
  std::vector<FusedPart> keys, values;
  for (int64_t h = shape.first_head; h < shape.first_head + shape.heads; ++h) {
    const int64_t rows = shape.total_heads * shape.kv_b_head(), first = h * shape.kv_b_head();
    keys.push_back({.name = "kv_b_proj", .n = rows, .rows = {first, shape.nope}, .transposed = true});
    values.push_back({.name = "kv_b_proj", .n = rows, .rows = {first + shape.nope, shape.value}});
  }
  const LinearRequest request{.k = shape.latent, .groups = shape.heads, .form = WeightForm::dequantize};
  w_uk_ = loader.load_fused_linear(keys, request);
  w_uv_ = loader.load_fused_linear(values, request);
}

void MlaAbsorbedAttention::absorb_queries(const OpRunner& run, const TensorView& q, const TensorView& q_absorbed) const {
  if (q.shape[0] == 0) return;
  run(run.ops.grouped_linear,
      GroupedLinearParams{.x = q.columns(0, shape_.nope), .weight = &w_uk_->weight, .y = q_absorbed.columns(0, shape_.latent)});
}

void MlaAbsorbedAttention::project_values(const OpRunner& run, const TensorView& z, const TensorView& o) const {
  run(run.ops.grouped_linear, GroupedLinearParams{.x = z, .weight = &w_uv_->weight, .y = o});
}

void MlaAbsorbedAttention::attend_dense(const OpRunner& run, const Batch& batch, const PagedCache& cache, int64_t num_requests,
                                        const TensorView& q_absorbed, const TensorView& o) const {
  if (o.shape[0] == 0) return;
  // A step with prompts among its requests has no schedule.
  const bool decodes = num_requests == batch.num_decodes;
  const DecodeBounds longest = decodes ? decode_bounds(batch) : DecodeBounds{batch.max_query_len, batch.max_seq_len};
  const ArenaScope scope(run.arena);
  const TensorView z = run.arena.tensor(DType::bf16, {o.shape[0], shape_.heads, shape_.latent});
  run(run.ops.dense_attn_decode, DenseAttnDecodeParams{.q = q_absorbed,
                                                       .cache = cache,
                                                       .block_table = batch[CacheGroup::mla_latent].block_table.slice(0, num_requests),
                                                       .query_start_loc = batch.query_start_loc.slice(0, num_requests + 1),
                                                       .seq_lens = batch.seq_lens.slice(0, num_requests),
                                                       .max_query_len = longest.query_len,
                                                       .max_seq_len = longest.seq_len,
                                                       .softmax_scale = shape_.softmax_scale,
                                                       .batch_invariant = options_.batch_invariant,
                                                       .schedule = decodes ? batch.mla_schedule : TensorView{},
                                                       .out = z});
  project_values(run, z, o);
}

bool MlaAbsorbedAttention::gathers(const PagedCache& cache, int64_t num_tokens, int64_t num_rows, int64_t topk) const {
  const PrefillWork work{.format = cache.format,
                         .latent = true,
                         .num_tokens = num_tokens,
                         .num_heads = shape_.heads,
                         .rows_per_token = std::min(topk, num_rows),
                         .num_chunks = 1,
                         .gathered_rows = num_rows};
  return !prefill_reads_pages(options_, work, *device_);
}

void MlaAbsorbedAttention::attend_sparse(const OpRunner& run, const Batch& batch, const PagedCache& cache, const TopkRows& rows,
                                         const TensorView& q_absorbed, const TensorView& o) const {
  const int64_t tokens = o.shape[0], topk = rows.slots.shape[1];
  if (tokens == 0) return;
  const ArenaScope scope(run.arena);
  const TensorView z = run.arena.tensor(DType::bf16, {tokens, shape_.heads, shape_.latent});
  // A plan has room for both modes if some request of as many tokens could be gathered: the fewer rows it has, the more likely.
  const bool plans = run.arena.measuring();
  int64_t first = 0;  // the first token that has not attended yet
  const auto attend_paged_to = [&](int64_t end) {
    if (end > first) attend_paged(run, cache, rows, q_absorbed, z, {first, end - first});
    first = end;
  };
  for (auto r = static_cast<size_t>(batch.num_decodes); r + 1 < batch.query_start_loc_host.size(); ++r) {
    const int64_t begin = batch.query_start_loc_host[r], end = batch.query_start_loc_host[r + 1];
    const int64_t num_rows = std::min<int64_t>(batch.seq_lens_host[r], batch.limits.max_model_len);
    if (begin == end || !gathers(cache, end - begin, plans ? topk : num_rows, topk)) continue;
    attend_paged_to(plans ? end : begin);
    attend_gathered(run, batch, cache, rows, q_absorbed, z, {begin, end - begin}, static_cast<int64_t>(r), num_rows);
    first = end;
  }
  attend_paged_to(tokens);
  project_values(run, z, o);
}

void MlaAbsorbedAttention::attend_paged(const OpRunner& run, const PagedCache& cache, const TopkRows& rows, const TensorView& q_absorbed,
                                        const TensorView& z, Tokens tokens) const {
  const auto queries = [&](const TensorView& v) { return one_query_each(v.slice(tokens.first, tokens.count)); };
  run(run.ops.sparse_attn_decode, SparseAttnDecodeParams{.q = queries(q_absorbed),
                                                         .cache = cache,
                                                         .indices = queries(rows.slots),
                                                         .topk_length = rows.lens.slice(tokens.first, tokens.count),
                                                         .softmax_scale = shape_.softmax_scale,
                                                         .batch_invariant = options_.batch_invariant,
                                                         .out = queries(z)});
}

void MlaAbsorbedAttention::attend_gathered(const OpRunner& run, const Batch& batch, const PagedCache& cache, const TopkRows& rows,
                                           const TensorView& q_absorbed, const TensorView& z, Tokens tokens, int64_t request,
                                           int64_t num_rows) const {
  ArenaScope scope(run.arena);
  const TensorView keys = run.arena.tensor(DType::bf16, {1, num_rows, shape_.row()});
  run(run.ops.dequantize_and_gather_k,
      DequantizeAndGatherKParams{.cache = cache,
                                 .seq_lens = batch.seq_lens.slice(request, 1),
                                 .block_table = batch[CacheGroup::mla_latent].block_table.slice(request, 1),
                                 .out = keys});
  run(run.ops.sparse_attn_prefill, SparseAttnPrefillParams{.q = q_absorbed.slice(tokens.first, tokens.count),
                                                           .kv = keys.reshape({num_rows, shape_.row()}),
                                                           .indices = rows.positions.slice(tokens.first, tokens.count),
                                                           .topk_length = rows.lens.slice(tokens.first, tokens.count),
                                                           .softmax_scale = shape_.softmax_scale,
                                                           .batch_invariant = options_.batch_invariant,
                                                           .out = z.slice(tokens.first, tokens.count)});
}

}  // namespace strata
