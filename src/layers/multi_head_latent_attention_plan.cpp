// What an MLA layer asks of its caller: options it can be built with, the workspace it needs, and arguments that fit.
#include "core/check.h"
#include "formats/kv_rows.h"
#include "layers/forward_check.h"
#include "layers/mla_cache_groups.h"
#include "layers/multi_head_latent_attention.h"
#include "layers/planning_batch.h"
#include "ops/dense_attention/dense_checks.h"

namespace strata {

void MultiHeadLatentAttention::check_options() const {
  if (sparse() && options_.mla_mode == MlaMode::mha) {
    fail(ErrorCode::unsupported, "mla_mode must be automatic or mqa for layers with an indexer (index_topk {}), is mha",
         config_.index_topk);
  }
  require(!options_.fp8_output, "fp8_output must be false for MLA layers, which have no wo_a, is true");
  const std::vector<CacheGroupSpec> groups = cache_groups();  // throws for formats that MLA caches do not have
  require(!options_.kv_scale_ue8m0 || groups.front().format == KvFormat::fp8_ds_mla,
          "kv_scale_ue8m0 must be false beside kv_format {}, is true", to_string(groups.front().format));
  check_dims();
}

// What the ops take: by the time one of them refuses a call, others have written to the caches.
void MultiHeadLatentAttention::check_dims() const {
  const auto at_most = [](const char* name, int64_t value, int64_t most) {
    if (value > most) fail(ErrorCode::unsupported, "{} must be at most {}, is {}", name, most, value);
  };
  constexpr const char* kRow = "kv_lora_rank + qk_rope_head_dim";
  at_most(kRow, shape_.row(), kMaxRowDim);
  if (sparse()) {
    if (!ops::is_sparse_head_dim(shape_.row())) {
      fail(ErrorCode::unsupported, "{} must be 512 or 576 for layers with an indexer, is {}", kRow, shape_.row());
    }
    at_most("qk_rope_head_dim beside an indexer", shape_.rope, config_.index_head_dim);
    return;
  }
  if (options_.mla_mode != MlaMode::mha)
    at_most("kv_lora_rank + qk_rope_head_dim with an mla_mode other than mha", shape_.row(), ops::kMaxDenseHeadDim);
  if (options_.mla_mode == MlaMode::mqa) return;
  at_most("qk_nope_head_dim + qk_rope_head_dim with an mla_mode other than mqa", shape_.head(), ops::kMaxDenseHeadDim);
  at_most("v_head_dim with an mla_mode other than mqa", shape_.value, ops::kMaxDenseHeadDim);
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
