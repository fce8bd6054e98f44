// An MLA layer's requirements: its workspace, and valid arguments.
#include "core/check.h"
#include "layers/forward_check.h"
#include "layers/multi_head_latent_attention.h"
#include "layers/planning_batch.h"

namespace strata {

int64_t MultiHeadLatentAttention::measure_workspace() const {
  return strata::measure_workspace(*this, device_, ops_, options_.limits, /*window=*/0, concurrent(side_streams_),
                                   [this](const ForwardArgs& args, const OpRunner& runner) { run(args, runner); });
}

void MultiHeadLatentAttention::check(const ForwardArgs& args) const {
  check_forward(*this, args, device_->id(), options_.limits, shape_.head(), shape_.value);
  ParamCheck c("forward", device_->id());
  c.optional("llama_4_scaling", args.llama_4_scaling, DType::f32, {args.hidden.shape[0]});
  if (args.dummy_run) return;
  const Batch& batch = *args.batch;
  const auto requests = static_cast<size_t>(batch.num_requests);
  c.require(batch.query_start_loc_host.size() == requests + 1 && batch.seq_lens_host.size() == requests,
            "the batch's host lengths must be those of its {} requests, are {} and {}", requests, batch.query_start_loc_host.size(),
            batch.seq_lens_host.size());
  if (indexer_) c.view("mla_lens of the batch", batch.mla_lens, DType::i32, {batch.num_tokens});
}

}  // namespace strata
