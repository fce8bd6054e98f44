#include "layers/mla_indexer.h"

#include <cmath>

namespace strata {
namespace {

constexpr float kNormEps = 1e-6f;          // independent of rms_norm_eps (MLA 11.1)
constexpr float kQueryAmaxFloor = 1e-10f;  // MLA 11.4; for keys 1e-4

}  // namespace

MlaIndexer::MlaIndexer(const WeightLoader& loader, const LayerOptions& options, const TensorView& cos_sin)
    : num_heads_(loader.checkpoint.config().index_n_heads),
      head_dim_(loader.checkpoint.config().index_head_dim),
      format_(options.indexer_format),
      hadamard_(options.hadamard),
      pairing_(loader.checkpoint.config().indexer_rope_interleave ? RopePairing::interleaved : RopePairing::half_split),
      cos_sin_(cos_sin),
      q_activation_(linear_activation(loader, "indexer.wq_b", options)) {
  // Replicated on every rank: all ranks must select the same positions (MLA 15).
  const ModelConfig& config = loader.checkpoint.config();
  wq_b_ = loader.load_linear("indexer.wq_b",
                             {.n = num_heads_ * head_dim_, .k = config.q_lora_rank, .activation = q_activation_, .shares_device = true});
  // As in public engines: dequantised, with unquantised activations (MLA 3.1).
  wk_ = loader.load_linear("indexer.wk", {.n = head_dim_, .k = config.hidden_size, .form = WeightForm::dequantize});
  // The head weights stay fp32, because they are factors of every logit (MLA 11.7).
  weights_proj_ = loader.load_linear("indexer.weights_proj", {.n = num_heads_, .k = config.hidden_size, .output = DType::f32});
  k_norm_weight_ = loader.load_vector_f32("indexer.k_norm.weight", head_dim_);
  k_norm_bias_ = loader.load_vector_f32("indexer.k_norm.bias", head_dim_);
}

void MlaIndexer::write_keys(const OpRunner& run, const Batch& batch, const LayerCaches& caches, const TensorView& x) const {
  ArenaScope scope(run.arena);
  const TensorView k = run.arena.tensor(DType::bf16, {x.shape[0], head_dim_});
  run(run.ops.linear, LinearParams{.x = x, .weight = &wk_->weight, .y = k});
  run(run.ops.indexer_key_insert, IndexerKeyInsertParams{.k = k,
                                                         .weight = k_norm_weight_,
                                                         .bias = k_norm_bias_,
                                                         .eps = kNormEps,
                                                         .positions = batch.positions,
                                                         .cos_sin = cos_sin_,
                                                         .pairing = pairing_,
                                                         .rope_slice = RopeSlice::first,
                                                         .hadamard = hadamard_,
                                                         .slot_mapping = batch[CacheGroup::mla_indexer].slot_mapping,
                                                         .cache = caches[CacheGroup::mla_indexer]});
}

MlaIndexer::Query MlaIndexer::allocate_query(Arena& arena, int64_t num_tokens) const {
  return {.q = arena.tensor(DType::bf16, {num_tokens, num_heads_, head_dim_}),
          .weights = arena.tensor(DType::f32, {num_tokens, num_heads_})};
}

void MlaIndexer::project_weights(const OpRunner& run, const TensorView& x, const Query& query) const {
  run(run.ops.linear, LinearParams{.x = x, .weight = &weights_proj_->weight, .y = query.weights});
}

void MlaIndexer::project_queries(const OpRunner& run, const NormedLatent& q_c, const Query& query) const {
  run(run.ops.linear, LinearParams{.x = q_c.values,
                                   .x_scale = q_c.scale,
                                   .weight = &wq_b_->weight,
                                   .y = query.q.reshape({query.q.shape[0], num_heads_ * head_dim_}),
                                   .activation = q_activation_});
}

void MlaIndexer::select(const OpRunner& run, const Batch& batch, const LayerCaches& caches, const Query& query,
                        const TensorView& topk_indices, const TensorView& slots, const TensorView& slot_lens) const {
  const GroupMetadata& latent = batch[CacheGroup::mla_latent];
  const int64_t tokens = query.q.shape[0];
  ArenaScope scope(run.arena);
  const TensorView folded = run.arena.tensor(DType::f32, {tokens, num_heads_});
  const TensorView codes = run.arena.tensor(format_ == IndexerFormat::fp8 ? DType::e4m3 : DType::bf16, {tokens, num_heads_, head_dim_});
  run(run.ops.indexer_query, IndexerQueryParams{.q = query.q,
                                                .weights = query.weights,
                                                .positions = batch.positions,
                                                .cos_sin = cos_sin_,
                                                .pairing = pairing_,
                                                .rope_slice = RopeSlice::first,
                                                .hadamard = hadamard_,
                                                .softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim_)),
                                                .head_scale = 1.0f / std::sqrt(static_cast<float>(num_heads_)),
                                                .amax_floor = kQueryAmaxFloor,
                                                .q_out = codes,
                                                .weights_out = folded});
  IndexerTopkParams topk{.q = codes,
                         .weights = folded,
                         .cache = caches[CacheGroup::mla_indexer],
                         .block_table = batch[CacheGroup::mla_indexer].block_table,
                         .token_to_req = batch.token_to_req,
                         .lengths = batch.mla_lens,
                         .max_length = batch.max_seq_len,
                         .topk_indices = topk_indices};
  if (slot_lens.shape[0] > 0) {
    topk.slots_epilogue = {.block_table = latent.block_table, .page_size = latent.spec.page_size, .slots = slots, .lens = slot_lens};
  }
  run(run.ops.indexer_topk, topk);
}

int64_t MlaIndexer::weight_bytes() const {
  return wq_b_->allocated_bytes() + wk_->allocated_bytes() + weights_proj_->allocated_bytes() + k_norm_weight_.allocated_bytes() +
         k_norm_bias_.allocated_bytes();
}

}  // namespace strata
