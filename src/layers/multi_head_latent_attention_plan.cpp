// What an MLA layer asks of its caller: options it can be built with, the workspace it needs, and arguments that fit.
#include "core/check.h"
#include "layers/forward_check.h"
#include "layers/mla_cache_groups.h"
#include "layers/multi_head_latent_attention.h"
#include "layers/planning_batch.h"

namespace strata {

void MultiHeadLatentAttention::check_options() const {
  constexpr int64_t kMaxHeads = 128;
  require(config_.num_attention_heads % options_.tp_size == 0, "num_attention_heads must be a multiple of tp_size {}, is {}",
          options_.tp_size, config_.num_attention_heads);
  require(shape_.heads >= 1 && shape_.heads <= kMaxHeads, "a rank must have 1 to {} heads, has {}", kMaxHeads, shape_.heads);
  const BatchLimits& limits = options_.limits;
  require(limits.max_num_batched_tokens > 0 && limits.max_num_seqs > 0 && limits.max_model_len > 0,
          "limits must be positive, are max_num_batched_tokens {}, max_num_seqs {}, max_model_len {}", limits.max_num_batched_tokens,
          limits.max_num_seqs, limits.max_model_len);
  require(rope_tables_ != nullptr, "rope_tables are required, are absent");
  const int64_t positions = rope_tables_->numbers().shape[0] - 1;
  require(positions >= limits.max_model_len, "rope_tables must have max_model_len {} positions, have {}", limits.max_model_len, positions);
  if (sparse() && options_.mla_mode == MlaMode::mha) {
    fail(ErrorCode::unsupported, "mla_mode must be automatic or mqa for layers with an indexer (index_topk {}), is mha",
         config_.index_topk);
  }
  const std::vector<CacheGroupSpec> groups = cache_groups();  // throws for formats that MLA caches do not have
  require(!options_.kv_scale_ue8m0 || groups.front().format == KvFormat::fp8_ds_mla,
          "kv_scale_ue8m0 must be false beside kv_format {}, is true", to_string(groups.front().format));
}

size_t MultiHeadLatentAttention::measure_workspace() const {
  return strata::measure_workspace(*this, device_, ops_, options_.limits, /*window=*/0, lanes_.get(),
                                   [this](const ForwardArgs& args, OpRunner& runner) { run(args, runner); });
}

void MultiHeadLatentAttention::check(const ForwardArgs& args) const {
  check_forward(*this, args, device_->id(), options_.limits, shape_.head(), shape_.value);
  ParamCheck c("forward", device_->id());
  c.optional("llama_4_scaling", args.llama_4_scaling, DType::f32, {args.hidden.shape[0]});
  if (args.batch == nullptr) return;
  const Batch& batch = *args.batch;
  const auto requests = static_cast<size_t>(batch.num_requests);
  c.require(batch.query_start_loc_host.size() == requests + 1 && batch.seq_lens_host.size() == requests,
            "the batch's host lengths must be those of its {} requests, are {} and {}", requests, batch.query_start_loc_host.size(),
            batch.seq_lens_host.size());
  if (indexer_) c.view("mla_lens of the batch", batch.mla_lens, DType::i32, {batch.num_tokens});
}

}  // namespace strata
