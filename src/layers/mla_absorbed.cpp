#include "layers/mla_absorbed.h"

#include <algorithm>

#include "batch/decode_bounds.h"
#include "layers/one_query_each.h"
#include "ops/sparse_attention/prefill_choice.h"

namespace strata {

MlaAbsorbedAttention::MlaAbsorbedAttention(const LayerContext& context, const WeightLoader& loader, const MlaShape& shape)
    : shape_(shape),
      device_(context.device),
      prefill_mode_(context.options.prefill_mode),
      batch_invariant_(context.options.batch_invariant) {
  // A head has P rows of its key, then V rows of its value (MLA 3). Products with an absorbed weight take bf16 on both sides.
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

template <class Attend>
void MlaAbsorbedAttention::forward(OpRunner& run, const TensorView& q, const TensorView& q_absorbed, const TensorView& o,
                                   Attend&& attend) const {
  run(run.ops.grouped_linear,
      GroupedLinearParams{.x = q.columns(0, shape_.nope), .weight = &w_uk_->weight, .y = q_absorbed.columns(0, shape_.latent)});
  ArenaScope scope(run.arena);
  const TensorView z = run.arena.tensor(DType::bf16, {q.shape[0], shape_.heads, shape_.latent});
  attend(z);
  run(run.ops.grouped_linear, GroupedLinearParams{.x = z, .weight = &w_uv_->weight, .y = o});
}

void MlaAbsorbedAttention::forward_dense(OpRunner& run, const Batch& batch, const PagedCache& cache, int64_t num_requests,
                                         const TensorView& q, const TensorView& q_absorbed, const TensorView& o) const {
  if (q.shape[0] == 0) return;
  // Of requests that are all of the step's, prompts among them, there is no schedule.
  const bool decodes = num_requests == batch.num_decodes;
  const DecodeBounds longest = decodes ? decode_bounds(batch) : DecodeBounds{batch.max_query_len, batch.max_seq_len};
  forward(run, q, q_absorbed, o, [&](const TensorView& z) {
    run(run.ops.dense_attn_decode, DenseAttnDecodeParams{.q = q_absorbed,
                                                         .cache = cache,
                                                         .block_table = batch[CacheGroup::mla_latent].block_table.slice(0, num_requests),
                                                         .query_start_loc = batch.query_start_loc.slice(0, num_requests + 1),
                                                         .seq_lens = batch.seq_lens.slice(0, num_requests),
                                                         .max_query_len = longest.query_len,
                                                         .max_seq_len = longest.seq_len,
                                                         .softmax_scale = shape_.softmax_scale,
                                                         .batch_invariant = batch_invariant_,
                                                         .spans = decodes ? batch.mla_spans : TensorView{},
                                                         .out = z});
  });
}

// Batch-invariant calls read the pages: the two ways round differently, and which is faster depends on how a prompt is cut.
bool MlaAbsorbedAttention::gathers(const PagedCache& cache, int64_t num_tokens, int64_t num_rows, int64_t topk) const {
  if (prefill_mode_ != PrefillMode::automatic) return prefill_mode_ == PrefillMode::gathered;
  if (batch_invariant_) return false;
  const PrefillWork work{.format = cache.format,
                         .latent = true,
                         .num_tokens = num_tokens,
                         .num_heads = shape_.heads,
                         .rows_per_token = std::min(topk, num_rows),
                         .num_chunks = 1,
                         .gathered_rows = num_rows};
  return !ops::paged_prefill_is_faster(work, *device_);
}

void MlaAbsorbedAttention::forward_sparse(OpRunner& run, const Batch& batch, const PagedCache& cache, const ChosenRows& rows,
                                          const TensorView& q, const TensorView& q_absorbed, const TensorView& o) const {
  const int64_t tokens = q.shape[0], topk = rows.slots.shape[1];
  if (tokens == 0) return run.join();
  forward(run, q, q_absorbed, o, [&](const TensorView& z) {
    run.join();
    // A plan has room for both ways where some request of so many tokens is gathered: the sooner, the fewer rows it has.
    const bool plans = run.arena.measuring();
    int64_t first = 0;  // that has not attended
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
  });
}

void MlaAbsorbedAttention::attend_paged(OpRunner& run, const PagedCache& cache, const ChosenRows& rows, const TensorView& q_absorbed,
                                        const TensorView& z, Span span) const {
  const auto tokens = [&](const TensorView& v) { return one_query_each(v.slice(span.first, span.count)); };
  run(run.ops.sparse_attn_decode, SparseAttnDecodeParams{.q = tokens(q_absorbed),
                                                         .cache = cache,
                                                         .indices = tokens(rows.slots),
                                                         .topk_length = rows.lens.slice(span.first, span.count),
                                                         .softmax_scale = shape_.softmax_scale,
                                                         .batch_invariant = batch_invariant_,
                                                         .out = tokens(z)});
}

void MlaAbsorbedAttention::attend_gathered(OpRunner& run, const Batch& batch, const PagedCache& cache, const ChosenRows& rows,
                                           const TensorView& q_absorbed, const TensorView& z, Span span, int64_t request,
                                           int64_t num_rows) const {
  ArenaScope scope(run.arena);
  const TensorView keys = run.arena.tensor(DType::bf16, {1, num_rows, shape_.row()});
  run(run.ops.dequantize_and_gather_k,
      DequantizeAndGatherKParams{.cache = cache,
                                 .seq_lens = batch.seq_lens.slice(request, 1),
                                 .block_table = batch[CacheGroup::mla_latent].block_table.slice(request, 1),
                                 .out = keys});
  run(run.ops.sparse_attn_prefill, SparseAttnPrefillParams{.q = q_absorbed.slice(span.first, span.count),
                                                           .kv = keys.reshape({num_rows, shape_.row()}),
                                                           .indices = rows.positions.slice(span.first, span.count),
                                                           .topk_length = rows.lens.slice(span.first, span.count),
                                                           .softmax_scale = shape_.softmax_scale,
                                                           .batch_invariant = batch_invariant_,
                                                           .out = z.slice(span.first, span.count)});
}

}  // namespace strata
