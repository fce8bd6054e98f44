#include "layers/indexer.h"

#include <cmath>

#include "contracts/fused_calls.h"

namespace strata {

KvFormat indexer_kv_format(IndexerFormat format) {
  switch (format) {
    case IndexerFormat::fp8: return KvFormat::indexer_fp8;
    case IndexerFormat::mxfp4: return KvFormat::indexer_mxfp4;
    case IndexerFormat::none: return KvFormat::bf16;
  }
  return KvFormat::indexer_fp8;
}

Indexer::Indexer(const WeightLoader& loader, const LayerOptions& options)
    : num_heads_(loader.checkpoint.config().index_n_heads),
      head_dim_(loader.checkpoint.config().index_head_dim),
      format_(options.indexer_format),
      hadamard_(options.hadamard),
      compressor_(loader, "indexer.compressor", loader.checkpoint.config().index_head_dim, 4,
                  {CacheGroup::c4_indexer_state, CacheGroup::c4_indexer}, static_cast<float>(loader.checkpoint.config().rms_norm_eps),
                  options.hadamard) {
  // Replicated on every rank: all ranks must select the same entries (V4 4.3).
  const ModelConfig& config = loader.checkpoint.config();
  activation_ = linear_activation(loader, "indexer.wq_b", options);
  wq_b_ = loader.load_linear("indexer.wq_b",
                             {.n = num_heads_ * head_dim_, .k = config.q_lora_rank, .activation = activation_, .shares_device = true});
  weights_proj_ = loader.load_linear("indexer.weights_proj", {.n = num_heads_, .k = config.hidden_size, .shares_device = true});
}

Indexer::Query Indexer::allocate_query(Arena& arena, int64_t num_tokens) const {
  Query query;
  query.projected = arena.tensor(DType::bf16, {num_tokens, num_heads_, head_dim_});
  switch (format_) {
    case IndexerFormat::fp8: query.q = arena.tensor(DType::e4m3, {num_tokens, num_heads_, head_dim_}); break;
    case IndexerFormat::mxfp4:
      query.q = arena.tensor(DType::u8, {num_tokens, num_heads_, head_dim_ / 2});
      query.scale = arena.tensor(DType::e8m0, {num_tokens, num_heads_, head_dim_ / 32});
      break;
    case IndexerFormat::none: query.q = arena.tensor(DType::bf16, {num_tokens, num_heads_, head_dim_}); break;
  }
  query.raw_weights = arena.tensor(DType::bf16, {num_tokens, num_heads_});
  query.weights = arena.tensor(DType::f32, {num_tokens, num_heads_});
  return query;
}

void Indexer::project_weights(const OpRunner& run, const TensorView& x, const Query& query) const {
  run(run.ops.linear, LinearParams{.x = x, .weight = &weights_proj_->weight, .y = query.raw_weights});
}

void Indexer::project_queries(const OpRunner& run, const NormedLatent& qr, const Query& query) const {
  run(run.ops.linear, LinearParams{.x = qr.values,
                                   .x_scale = qr.scale,
                                   .weight = &wq_b_->weight,
                                   .y = query.projected.reshape({qr.values.shape[0], num_heads_ * head_dim_}),
                                   .activation = activation_});
}

IndexerQueryParams Indexer::query_params(const Batch& batch, const TensorView& cos_sin, const Query& query) const {
  return ops::query_call(query_prologue(batch, cos_sin, query), {.q = query.q, .q_scale = query.scale, .weights = query.weights});
}

IndexerQueryPrologue Indexer::query_prologue(const Batch& batch, const TensorView& cos_sin, const Query& query) const {
  return {.q = query.projected,
          .weights = query.raw_weights,
          .positions = batch.positions,
          .cos_sin = cos_sin,
          .hadamard = hadamard_,
          .softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim_)),
          .head_scale = 1.0f / std::sqrt(static_cast<float>(num_heads_))};
}

IndexerTopkParams Indexer::select_params(const Batch& batch, const LayerCaches& caches, const TensorView& topk_indices) const {
  return {.cache = caches[CacheGroup::c4_indexer],
          .block_table = batch[CacheGroup::c4_indexer].block_table,
          .token_to_req = batch.token_to_req,
          .lengths = batch.c4_lens,
          .max_length = batch.max_seq_len / 4,
          .topk_indices = topk_indices};
}

int64_t Indexer::weight_bytes() const { return wq_b_->allocated_bytes() + weights_proj_->allocated_bytes() + compressor_.weight_bytes(); }

}  // namespace strata
