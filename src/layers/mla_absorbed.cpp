#include "layers/mla_absorbed.h"

namespace strata {

MlaAbsorbedAttention::MlaAbsorbedAttention(const WeightLoader& loader, const MlaShape& shape, bool batch_invariant)
    : shape_(shape), batch_invariant_(batch_invariant) {
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
  forward(run, q, q_absorbed, o, [&](const TensorView& z) {
    run(run.ops.dense_attn_decode, DenseAttnDecodeParams{.q = q_absorbed,
                                                         .cache = cache,
                                                         .block_table = batch[CacheGroup::mla_latent].block_table.slice(0, num_requests),
                                                         .query_start_loc = batch.query_start_loc.slice(0, num_requests + 1),
                                                         .seq_lens = batch.seq_lens.slice(0, num_requests),
                                                         .max_query_len = batch.max_query_len,
                                                         .max_seq_len = batch.max_seq_len,
                                                         .softmax_scale = shape_.softmax_scale,
                                                         .batch_invariant = batch_invariant_,
                                                         .out = z});
  });
}

void MlaAbsorbedAttention::forward_sparse(OpRunner& run, const PagedCache& cache, const ChosenRows& rows, const TensorView& q,
                                          const TensorView& q_absorbed, const TensorView& o) const {
  const int64_t tokens = q.shape[0], topk = rows.slots.shape[1];
  if (tokens == 0) return run.join();
  forward(run, q, q_absorbed, o, [&](const TensorView& z) {
    run.join();
    run(run.ops.sparse_attn_decode, SparseAttnDecodeParams{.q = q_absorbed.reshape({tokens, 1, shape_.heads, shape_.row()}),
                                                           .cache = cache,
                                                           .indices = rows.slots.reshape({tokens, 1, topk}),
                                                           .topk_length = rows.lens,
                                                           .softmax_scale = shape_.softmax_scale,
                                                           .batch_invariant = batch_invariant_,
                                                           .out = z.reshape({tokens, 1, shape_.heads, shape_.latent})});
  });
}

}  // namespace strata
