#include "layers/multi_head_latent_attention.h"

#include "layers/forward.h"
#include "layers/given_topk.h"
#include "layers/launcher.h"
#include "contracts/row_alignment.h"

namespace strata {

void MultiHeadLatentAttention::forward(const ForwardArgs& args) {
  run_forward(
      *this, args, *device_, ops_, concurrent(side_streams_), communicator_.get(), [&] { check(args); },
      [&](const OpRunner& runner) { run(args, runner); });
}

void MultiHeadLatentAttention::run(const ForwardArgs& args, const OpRunner& run) const {
  const Batch& batch = *args.batch;
  const int64_t num_tokens = batch.num_tokens;
  const int64_t absorbed = absorbed_requests(batch);
  const int64_t absorbed_tokens = absorbed == batch.num_requests ? batch.num_request_tokens() : absorbed == 0 ? 0 : batch.num_decode_tokens;

  // (a) query, latent and rotary key; sparse layers: the selected rows
  const Projections p = allocate(args, run, absorbed_tokens);
  const MlaLaunches launches{.sparse = sparse(), .indexer = indexer_.has_value(), .selects = indexer_ && !args.skip_topk};
  const MlaLaunchOrder order = launch_order_.empty() ? mla_launch_order(launches) : launch_order_;
  launch_steps(run, order, [&](MlaStep step, const OpRunner& on) { issue(step, p, on); });

  // (b) attention: the first requests in the absorbed form, the others in the expanded form; rows outside every request are zero
  const TensorView o =
      args.attn_out_tap.present() ? args.attn_out_tap : run.arena.tensor(DType::bf16, {num_tokens, shape_.heads, shape_.value});
  const PagedCache& cache = args.caches[CacheGroup::mla_latent];
  const TensorView absorbed_out = o.slice(0, absorbed_tokens);
  if (sparse()) {
    absorbed_->attend_sparse(run, batch, cache, p.rows, p.q_absorbed, absorbed_out);
  } else if (absorbed_) {
    absorbed_->attend_dense(run, batch, cache, absorbed, p.q_absorbed, absorbed_out);
  }
  if (expanded_) expanded_->forward(run, batch, cache, absorbed, p.q, p.c, p.k_pe, o);
  run.zero(o.slice(batch.num_request_tokens(), num_tokens - batch.num_request_tokens()));

  // (c) output projection
  run(run.ops.linear, LinearParams{.x = o.reshape({num_tokens, shape_.heads * shape_.value}),
                                   .weight = &o_proj_->weight,
                                   .y = args.out,
                                   .activation = o_activation_});
}

MultiHeadLatentAttention::Projections MultiHeadLatentAttention::allocate(const ForwardArgs& args, const OpRunner& run,
                                                                         int64_t absorbed_tokens) const {
  const int64_t num_tokens = args.batch->num_tokens, rank = config_.q_lora_rank;
  Projections p{.args = args};
  if (sparse()) {
    p.rows.positions = args.topk_indices.slice(0, absorbed_tokens);
    p.rows.slots = run.arena.tensor(DType::i32, {absorbed_tokens, config_.index_topk});
    p.rows.lens = run.arena.tensor(DType::i32, {absorbed_tokens});
  }
  // On a GPU the linear ops require memory as aligned as its row stride: these views are only as aligned as the offset of the latent.
  int64_t columns = rank + shape_.row();
  const auto alignment = [](int64_t elements) { return ops::alignment_of(elements * static_cast<int64_t>(size_of(DType::bf16))); };
  while (alignment(columns) > alignment(rank)) ++columns;
  p.latents = run.arena.tensor(DType::bf16, {num_tokens, columns}).columns(0, rank + shape_.row());
  p.q_c = {.values = args.hidden};
  if (rank > 0) {
    p.q_a = p.latents.columns(0, rank);
    p.q_c = normed_latent(run.arena, p.q_a, q_c_format_);
  }
  p.c = p.latents.columns(rank, shape_.latent);
  p.k_pe = p.latents.columns(rank + shape_.latent, shape_.rope);
  if (indexer_ && !args.skip_topk) p.index_query = indexer_->allocate_query(run.arena, num_tokens);
  p.q = args.q_tap.present() ? args.q_tap : run.arena.tensor(DType::bf16, {num_tokens, shape_.heads, shape_.head()});
  p.q_absorbed = run.arena.tensor(DType::bf16, {absorbed_tokens, shape_.heads, shape_.row()});
  return p;
}

void MultiHeadLatentAttention::issue(MlaStep step, const Projections& p, const OpRunner& run) const {
  const ForwardArgs& args = p.args;
  const Batch& batch = *args.batch;
  const TensorView& x = args.hidden;
  switch (step) {
    case MlaStep::index_keys: return indexer_->write_keys(run, batch, args.caches, x);
    case MlaStep::index_weights: return indexer_->project_weights(run, x, p.index_query);
    case MlaStep::latents:
      return run(run.ops.linear, LinearParams{.x = x, .weight = &x_proj_->weight, .y = p.latents, .activation = x_activation_});
    case MlaStep::norms: {
      RmsNormPairParams norm{.kv = p.c, .kv_weight = kv_norm_, .kv_out = p.c, .eps = eps_};
      if (p.q_a.present()) {
        norm.q = p.q_a;
        norm.q_weight = q_norm_;
        norm.q_out = p.q_c.values;
        norm.q_scale = p.q_c.scale;
        norm.q_format = p.q_c.format;
      }
      return run(run.ops.rms_norm_pair, norm);
    }
    case MlaStep::index_queries: return indexer_->project_queries(run, p.q_c, p.index_query);
    case MlaStep::select_topk:
      return indexer_->select(run, batch, args.caches, p.index_query, args.topk_indices.slice(0, batch.num_tokens), p.rows.slots,
                              p.rows.lens);
    case MlaStep::topk_slots: return find_topk_slots(run, batch, CacheGroup::mla_latent, args.topk_indices, p.rows.slots, p.rows.lens);
    case MlaStep::queries:
      return run(run.ops.linear, LinearParams{.x = p.q_c.values,
                                              .x_scale = p.q_c.scale,
                                              .weight = &q_proj_->weight,
                                              .y = p.q.reshape({batch.num_tokens, shape_.heads * shape_.head()}),
                                              .activation = q_activation_});
    case MlaStep::insert_keys:
      return run(run.ops.mla_rope_kv_insert, MlaRopeKvInsertParams{.q = p.q,
                                                                   .c = p.c,
                                                                   .k_pe = p.k_pe,
                                                                   .positions = batch.positions,
                                                                   .cos_sin = cos_sin_,
                                                                   .llama_4_scaling = args.llama_4_scaling,
                                                                   .q_pe_out = p.q_absorbed.columns(shape_.latent, shape_.rope),
                                                                   .slot_mapping = batch[CacheGroup::mla_latent].slot_mapping,
                                                                   .cache = args.caches[CacheGroup::mla_latent],
                                                                   .ue8m0 = options_.kv_scale_ue8m0});
    case MlaStep::absorb:
      if (absorbed_) absorbed_->absorb_queries(run, p.q.slice(0, p.q_absorbed.shape[0]), p.q_absorbed);
      return;
  }
}

int64_t MultiHeadLatentAttention::absorbed_requests(const Batch& batch) const {
  switch (options_.mla_mode) {
    case MlaMode::mha: return 0;
    case MlaMode::mqa: return batch.num_requests;
    case MlaMode::automatic: break;
  }
  return sparse() ? batch.num_requests : batch.num_decodes;
}

}  // namespace strata
