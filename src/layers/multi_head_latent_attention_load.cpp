// Weights of an MLA layer: MLA specification 3 and 15.
#include "layers/forward_check.h"
#include "layers/linear_activation.h"
#include "layers/mla_cache_groups.h"
#include "layers/multi_head_latent_attention.h"

namespace strata {

MultiHeadLatentAttention::MultiHeadLatentAttention(const LayerContext& context)
    : layer_(context.layer),
      config_(context.checkpoint.config()),
      options_(check_context(context)),
      shape_(config_, options_),
      eps_(static_cast<float>(config_.rms_norm_eps)),
      device_(context.device),
      ops_(context.ops),
      rope_tables_(context.rope_tables),
      communicator_(context.communicator),
      side_streams_(context.side_streams) {
  cache_groups();  // throws for formats that MLA caches do not have
  load(context);
  workspace_bytes_ = measure_workspace();
}

void MultiHeadLatentAttention::load(const LayerContext& context) {
  const WeightLoader loader{context.checkpoint, layer_, device_, ops_};
  const int64_t rank = config_.q_lora_rank;
  if (options_.rotary_embedding) cos_sin_ = rope_tables_->get(config_.rope(layer_));

  x_activation_ = linear_activation(loader, "kv_a_proj_with_mqa", options_);
  std::vector<FusedPart> from_x;
  if (rank > 0) from_x.push_back({.name = "q_a_proj", .n = rank});
  from_x.push_back({.name = "kv_a_proj_with_mqa", .n = shape_.row()});
  x_proj_ = loader.load_fused_linear(from_x, {.k = config_.hidden_size, .activation = x_activation_});
  if (rank > 0) q_norm_ = loader.load_vector_f32("q_a_layernorm.weight", rank);
  kv_norm_ = loader.load_vector_f32("kv_a_layernorm.weight", shape_.latent);

  const std::string q_name = rank > 0 ? "q_b_proj" : "q_proj";
  q_activation_ = linear_activation(loader, q_name, options_);
  q_proj_ = loader.load_linear(q_name, {.n = shape_.total_heads * shape_.head(),
                                        .k = rank > 0 ? rank : config_.hidden_size,
                                        .rows = {shape_.first_head * shape_.head(), shape_.heads * shape_.head()},
                                        .activation = q_activation_});
  // kv_b_proj is loaded in the forms that the modes need.
  if (sparse() || options_.mla_mode != MlaMode::mha) absorbed_.emplace(context, loader, shape_);
  if (!sparse() && options_.mla_mode != MlaMode::mqa) expanded_.emplace(loader, shape_, options_, rope_tables_->numbers());
  if (sparse() && !config_.skip_topk(layer_)) indexer_.emplace(loader, options_, cos_sin_);
  q_c_format_ = indexer_ ? common_format(q_activation_, indexer_->query_activation()) : q_activation_;

  o_activation_ = linear_activation(loader, "o_proj", options_);
  o_proj_ = loader.load_linear("o_proj", {.n = config_.hidden_size,
                                          .k = shape_.total_heads * shape_.value,
                                          .columns = {shape_.first_head * shape_.value, shape_.heads * shape_.value},
                                          .activation = o_activation_});
}

std::vector<CacheGroupSpec> MultiHeadLatentAttention::cache_groups() const { return mla_cache_groups(config_, options_, layer_); }

int64_t MultiHeadLatentAttention::weight_bytes() const {
  int64_t bytes = x_proj_->allocated_bytes() + q_proj_->allocated_bytes() + o_proj_->allocated_bytes() + q_norm_.allocated_bytes() +
                  kv_norm_.allocated_bytes();
  if (absorbed_) bytes += absorbed_->weight_bytes();
  if (expanded_) bytes += expanded_->weight_bytes();
  if (indexer_) bytes += indexer_->weight_bytes();
  return bytes;
}

}  // namespace strata
