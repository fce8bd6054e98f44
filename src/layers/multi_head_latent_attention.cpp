#include "layers/multi_head_latent_attention.h"

#include "layers/forward.h"
#include "ops/linear/row_alignment.h"

namespace strata {

void MultiHeadLatentAttention::forward(const ForwardArgs& args) {
  run_forward(
      *this, args, *device_, ops_, lanes_.get(), communicator_.get(), [&] { check(args); }, [&](OpRunner& runner) { run(args, runner); });
}

void MultiHeadLatentAttention::run(const ForwardArgs& args, OpRunner& run) const {
  const Batch& batch = *args.batch;
  const int64_t num_tokens = batch.num_tokens;
  const int64_t absorbed = absorbed_requests(batch);
  const int64_t absorbed_tokens = absorbed == batch.num_requests ? batch.num_request_tokens() : absorbed == 0 ? 0 : batch.num_decode_tokens;

  // (a) query, latent and rotary key; sparse layers: which rows are attended to
  ChosenRows rows;
  if (sparse()) {
    rows.positions = args.topk_indices.slice(0, absorbed_tokens);
    rows.slots = run.arena.tensor(DType::i32, {absorbed_tokens, config_.index_topk});
    rows.lens = run.arena.tensor(DType::i32, {absorbed_tokens});
    write_indexer_keys(args, run);
  }
  const Latents x = project(args, run, rows);

  // (b) attention: the first requests in the absorbed form, the others in the expanded one; rows of no request are zero
  const TensorView o =
      args.attn_out_tap.present() ? args.attn_out_tap : run.arena.tensor(DType::bf16, {num_tokens, shape_.heads, shape_.value});
  attend_absorbed(args, run, x, rows, o, absorbed, absorbed_tokens);
  if (expanded_) expanded_->forward(run, batch, args.caches[CacheGroup::mla_latent], absorbed, x.q, x.c, x.k_pe, o);
  run.zero(o.slice(batch.num_request_tokens(), num_tokens - batch.num_request_tokens()));

  // (c) output projection
  run(run.ops.linear, LinearParams{.x = o.reshape({num_tokens, shape_.heads * shape_.value}),
                                   .weight = &o_proj_->weight,
                                   .y = args.out,
                                   .activation = o_activation_});
}

// Even where the selection comes from elsewhere: a later step may select among them.
void MultiHeadLatentAttention::write_indexer_keys(const ForwardArgs& args, OpRunner& run) const {
  if (!indexer_) return;
  run.aside(0, [&](OpRunner& aside) { indexer_->write_keys(aside, *args.batch, args.caches, args.hidden); });
}

void MultiHeadLatentAttention::choose(const ForwardArgs& args, OpRunner& run, const NormedLatent& q_c, const MlaIndexer::Query& query,
                                      const ChosenRows& rows) const {
  const Batch& batch = *args.batch;
  const int64_t tokens = rows.lens.shape[0];
  if (query.q.present()) run.aside(1, [&](OpRunner& aside) { indexer_->project_queries(aside, q_c, query); });
  if (indexer_) run.order(0, 1);
  run.aside(1, [&](OpRunner& aside) {
    if (query.q.present())
      return indexer_->select(aside, batch, args.caches, query, args.topk_indices.slice(0, batch.num_tokens), rows.slots, rows.lens);
    if (tokens == 0) return;
    const GroupMetadata& latent = batch[CacheGroup::mla_latent];
    aside(run.ops.compute_global_topk, ComputeGlobalTopkParams{.topk_indices = args.topk_indices.slice(0, tokens),
                                                               .token_to_req = batch.token_to_req.slice(0, tokens),
                                                               .is_valid_token = batch.is_valid_token.slice(0, tokens),
                                                               .block_table = latent.block_table,
                                                               .page_size = latent.spec.page_size,
                                                               .global_indices = rows.slots,
                                                               .lens = rows.lens});
  });
}

MultiHeadLatentAttention::Latents MultiHeadLatentAttention::project(const ForwardArgs& args, OpRunner& run, const ChosenRows& rows) const {
  const int64_t num_tokens = args.batch->num_tokens, rank = config_.q_lora_rank;
  // A GPU's linear ops want memory to begin as aligned as its rows are apart: these are no more aligned than where the latent begins.
  int64_t columns = rank + shape_.row();
  const auto alignment = [](int64_t elements) { return ops::alignment_of(elements * static_cast<int64_t>(size_of(DType::bf16))); };
  while (alignment(columns) > alignment(rank)) ++columns;
  const TensorView latents = run.arena.tensor(DType::bf16, {num_tokens, columns}).columns(0, rank + shape_.row());
  MlaIndexer::Query query;
  if (indexer_ && !args.skip_topk) {
    query = indexer_->allocate_query(run.arena, num_tokens);
    // The head weights need the layer's input alone: later the choice would wait for them.
    run.aside(1, [&](OpRunner& aside) { indexer_->project_weights(aside, args.hidden, query); });
  }
  run(run.ops.linear, LinearParams{.x = args.hidden, .weight = &x_proj_->weight, .y = latents, .activation = x_activation_});
  Latents x;
  x.c = latents.columns(rank, shape_.latent);
  x.k_pe = latents.columns(rank + shape_.latent, shape_.rope);
  RmsNormPairParams norm{.kv = x.c, .kv_weight = kv_norm_, .kv_out = x.c, .eps = eps_};
  NormedLatent q_c{.values = args.hidden};
  if (rank > 0) {
    norm.q = latents.columns(0, rank);
    norm.q_weight = q_norm_;
    q_c = normed_latent(run.arena, norm.q, q_c_format_);
    norm.q_out = q_c.values;
    norm.q_scale = q_c.scale;
    norm.q_format = q_c.format;
  }
  run(run.ops.rms_norm_pair, norm);
  if (sparse()) choose(args, run, q_c, query, rows);
  x.q = args.q_tap.present() ? args.q_tap : run.arena.tensor(DType::bf16, {num_tokens, shape_.heads, shape_.head()});
  run(run.ops.linear, LinearParams{.x = q_c.values,
                                   .x_scale = q_c.scale,
                                   .weight = &q_proj_->weight,
                                   .y = x.q.reshape({num_tokens, shape_.heads * shape_.head()}),
                                   .activation = q_activation_});
  return x;
}

int64_t MultiHeadLatentAttention::absorbed_requests(const Batch& batch) const {
  switch (options_.mla_mode) {
    case MlaMode::mha: return 0;
    case MlaMode::mqa: return batch.num_requests;
    case MlaMode::automatic: break;
  }
  return sparse() ? batch.num_requests : batch.num_decodes;
}

// Ends the queries and keys of all tokens too: they are rotated and scaled, and the keys are in the caches, before anyone attends.
void MultiHeadLatentAttention::attend_absorbed(const ForwardArgs& args, OpRunner& run, const Latents& x, const ChosenRows& rows,
                                               const TensorView& o, int64_t num_requests, int64_t num_tokens) const {
  const Batch& batch = *args.batch;
  const PagedCache& cache = args.caches[CacheGroup::mla_latent];
  ArenaScope scope(run.arena);
  const TensorView q_absorbed = run.arena.tensor(DType::bf16, {num_tokens, shape_.heads, shape_.row()});
  run(run.ops.mla_rope_kv_insert, MlaRopeKvInsertParams{.q = x.q,
                                                        .c = x.c,
                                                        .k_pe = x.k_pe,
                                                        .positions = batch.positions,
                                                        .cos_sin = cos_sin_,
                                                        .llama_4_scaling = args.llama_4_scaling,
                                                        .q_pe_out = q_absorbed.columns(shape_.latent, shape_.rope),
                                                        .slot_mapping = batch[CacheGroup::mla_latent].slot_mapping,
                                                        .cache = cache,
                                                        .ue8m0 = options_.kv_scale_ue8m0});
  const TensorView q = x.q.slice(0, num_tokens), out = o.slice(0, num_tokens);
  if (!sparse()) {
    if (absorbed_) absorbed_->forward_dense(run, batch, cache, num_requests, q, q_absorbed, out);
    return;
  }
  absorbed_->forward_sparse(run, batch, cache, rows, q, q_absorbed, out);
}

}  // namespace strata
