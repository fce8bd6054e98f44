// A V4 layer's requirements: its workspace, and valid arguments.
#include "core/check.h"
#include "layers/deepseek_v4_attention.h"
#include "layers/forward_check.h"
#include "layers/planning_batch.h"

namespace strata {

int64_t DeepseekV4Attention::measure_workspace() const {
  return strata::measure_workspace(*this, device_, ops_, options_.limits, config_.sliding_window, concurrent(side_streams_),
                                   [this](const ForwardArgs& args, const OpRunner& runner) { run(args, runner); });
}

void DeepseekV4Attention::check(const ForwardArgs& args) const {
  check_forward(*this, args, device_->id(), options_.limits, config_.head_dim, config_.head_dim);
  require(!args.llama_4_scaling.present(), "forward: llama_4_scaling must be absent for V4 layers, is {}", args.llama_4_scaling);
  if (args.dummy_run) return;
  // A builder made with another window builds other index rows.
  ParamCheck c("forward", device_->id());
  c.view("swa_indices of the batch", args.batch->swa_indices, DType::i32, {args.batch->num_tokens, config_.sliding_window});
}

}  // namespace strata
