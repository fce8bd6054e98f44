#include "layers/forward_check.h"

#include "core/check.h"
#include "ops/linear/linear_checks.h"
#include "strata/op.h"

namespace strata {
namespace {

// The slots too, where the host can read them: ops that write to different caches look each at its own, and some of them would have run.
void check_cache(ParamCheck& c, const CacheGroupSpec& spec, const Batch& batch, const LayerCaches& caches, DeviceId device) {
  const PagedCache& cache = caches[spec.group];
  const GroupMetadata& group = batch[spec.group];
  const std::string_view name = to_string(spec.group);
  require(group.present, "forward: the batch must have cache group {}, has not", name);
  require(cache.present() && cache.data != nullptr, "forward: cache {} is required, is absent", name);
  require(cache.device == device, "forward: cache {} must be on {}, is on {}", name, to_string(device), to_string(cache.device));
  require(cache.format == spec.format && cache.row_dim == spec.row_dim, "forward: cache {} must hold {} rows of {}, holds {} rows of {}",
          name, to_string(spec.format), spec.row_dim, to_string(cache.format), cache.row_dim);
  require(cache.page_size == group.spec.page_size, "forward: cache {} must have the batch's page_size {}, has {}", name,
          group.spec.page_size, cache.page_size);
  const int64_t payload = page_payload_bytes(cache.format, cache.row_dim, cache.page_size);
  require(cache.page_stride >= payload, "forward: cache {} must have a page_stride of at least {}, has {}", name, payload,
          cache.page_stride);
  const std::string slots = fmt::format("{} slot_mapping", name);
  c.view(slots, group.slot_mapping, DType::i64, {batch.num_tokens});
  c.values_in(slots, group.slot_mapping, 0, cache.num_slots(), true);
}

}  // namespace

void check_forward(const AttentionLayer& layer, const ForwardArgs& args, DeviceId device, const BatchLimits& limits, int64_t q_dim,
                   int64_t attn_out_dim) {
  ParamCheck c("forward", device);
  c.view("hidden", args.hidden, DType::bf16, {kAny, layer.hidden_size()});
  ops::check_row_alignment(c, "hidden", args.hidden);
  const int64_t num_tokens = args.hidden.shape[0];
  c.view("out", args.out, DType::bf16, {num_tokens, layer.hidden_size()});
  c.contiguous("out", args.out);
  ops::check_row_alignment(c, "out", args.out);
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
  const int64_t most_decode_tokens = limits.max_num_seqs * (int64_t{1} + limits.num_speculative_tokens);
  c.require(batch.num_decode_tokens <= most_decode_tokens,
            "the batch must have at most max_num_seqs {} times 1 + num_speculative_tokens {} decode tokens, has {}", limits.max_num_seqs,
            limits.num_speculative_tokens, batch.num_decode_tokens);
  c.view("positions of the batch", batch.positions, DType::i64, {num_tokens});
  for (const CacheGroupSpec& spec : layer.cache_groups()) check_cache(c, spec, batch, args.caches, device);
  if (const int64_t topk = layer.index_topk(); topk > 0) {
    c.view("topk_indices", args.topk_indices, DType::i32, {kAny, topk});
    c.contiguous("topk_indices", args.topk_indices);
    c.require(args.topk_indices.shape[0] >= num_tokens, "topk_indices must have at least {} rows, has {}", num_tokens,
              args.topk_indices.shape[0]);
  }
  const auto check_tap = [&](std::string_view name, const TensorView& tap, int64_t dim) {
    c.optional(name, tap, DType::bf16, {num_tokens, layer.num_heads(), dim});
    c.contiguous(name, tap);
    if (tap.present()) ops::check_row_alignment(c, name, tap);
  };
  check_tap("q_tap", args.q_tap, q_dim);
  check_tap("attn_out_tap", args.attn_out_tap, attn_out_dim);
  detail::check_workspace("forward", fmt::format("layer {}", layer.layer_index()), layer.workspace_bytes(), args.workspace);
}

}  // namespace strata
