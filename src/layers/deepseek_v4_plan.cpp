// What a V4 layer asks of its caller: the workspace it needs, and arguments that fit.
#include <algorithm>

#include "layers/deepseek_v4_attention.h"
#include "layers/planning_batch.h"

namespace strata {

size_t DeepseekV4Attention::measure_workspace() const {
  const BatchLimits& limits = options_.limits;
  const std::vector<CacheGroupSpec> groups = cache_groups();
  size_t peak = 0;
  // The implementation chosen may change with the number of tokens, so small steps are measured too.
  for (int64_t tokens = limits.max_num_batched_tokens; tokens > 0; tokens /= 2) {
    for (BatchPart part : {BatchPart::decode, BatchPart::prefill}) {
      const Batch batch = planning_batch(device_->id(), limits, groups, config_.sliding_window, tokens, part);
      ForwardArgs args;
      args.batch = &batch;
      args.caches = planning_caches(device_->id(), groups);
      args.hidden = TensorView::contiguous(nullptr, DType::bf16, device_->id(), {tokens, config_.hidden_size});
      args.out = args.hidden;
      if (indexer_) args.topk_indices = TensorView::contiguous(nullptr, DType::i32, device_->id(), {tokens, config_.index_topk});
      Arena arena(device_->id());
      OpRunner runner(*device_, {}, ops_, arena);
      run(args, runner);
      peak = std::max(peak, arena.peak());
    }
  }
  return peak;
}

void DeepseekV4Attention::check_cache(const CacheGroupSpec& spec, const Batch& batch, const LayerCaches& caches) const {
  const PagedCache& cache = caches[spec.group];
  const GroupMetadata& group = batch[spec.group];
  const std::string_view name = to_string(spec.group);
  require(group.present, "forward: the batch must have cache group {}, has not", name);
  require(cache.present() && cache.data != nullptr, "forward: cache {} is required, is absent", name);
  require(cache.device == device_->id(), "forward: cache {} must be on {}, is on {}", name, to_string(device_->id()),
          to_string(cache.device));
  require(cache.format == spec.format && cache.row_dim == spec.row_dim, "forward: cache {} must hold {} rows of {}, holds {} rows of {}",
          name, to_string(spec.format), spec.row_dim, to_string(cache.format), cache.row_dim);
  require(cache.page_size == group.spec.page_size, "forward: cache {} must have the batch's page_size {}, has {}", name,
          group.spec.page_size, cache.page_size);
  const int64_t payload = page_payload_bytes(cache.format, cache.row_dim, cache.page_size);
  require(cache.page_stride >= payload, "forward: cache {} must have a page_stride of at least {}, has {}", name, payload,
          cache.page_stride);
}

void DeepseekV4Attention::check(const ForwardArgs& args) const {
  ParamCheck c("forward", device_->id());
  c.view("hidden", args.hidden, DType::bf16, {kAny, config_.hidden_size});
  const int64_t num_tokens = args.hidden.shape[0];
  c.view("out", args.out, DType::bf16, {num_tokens, config_.hidden_size});
  c.contiguous("out", args.out);
  const BatchLimits& limits = options_.limits;
  c.require(num_tokens <= limits.max_num_batched_tokens, "hidden must have at most max_num_batched_tokens {} rows, has {}",
            limits.max_num_batched_tokens, num_tokens);
  if (args.batch == nullptr) return;

  const Batch& batch = *args.batch;
  c.require(batch.num_tokens == num_tokens, "hidden must have the batch's {} rows, has {}", batch.num_tokens, num_tokens);
  c.require(batch.num_requests <= limits.max_num_seqs, "the batch must have at most max_num_seqs {} requests, has {}", limits.max_num_seqs,
            batch.num_requests);
  c.require(batch.limits.max_model_len <= limits.max_model_len && batch.limits.max_num_batched_tokens <= limits.max_num_batched_tokens,
            "the batch must be built within the layer's limits max_model_len {} and max_num_batched_tokens {}, was built with {} and {}",
            limits.max_model_len, limits.max_num_batched_tokens, batch.limits.max_model_len, batch.limits.max_num_batched_tokens);
  c.view("positions of the batch", batch.positions, DType::i64, {num_tokens});
  for (const CacheGroupSpec& spec : cache_groups()) check_cache(spec, batch, args.caches);
  if (indexer_) {
    c.view("topk_indices", args.topk_indices, DType::i32, {kAny, config_.index_topk});
    c.contiguous("topk_indices", args.topk_indices);
    c.require(args.topk_indices.shape[0] >= num_tokens, "topk_indices must have at least {} rows, has {}", num_tokens,
              args.topk_indices.shape[0]);
  }
  for (const auto& [name, tap] : {std::pair{"q_tap", args.q_tap}, std::pair{"attn_out_tap", args.attn_out_tap}}) {
    c.optional(name, tap, DType::bf16, {num_tokens, num_heads_, config_.head_dim});
    c.contiguous(name, tap);
  }
  if (args.workspace.bytes < workspace_bytes_ || (args.workspace.data == nullptr && workspace_bytes_ > 0)) {
    fail(ErrorCode::workspace_too_small, "forward: layer {} needs a workspace of {} bytes, got {}", layer_, workspace_bytes_,
         args.workspace.data == nullptr ? 0 : args.workspace.bytes);
  }
}

}  // namespace strata
