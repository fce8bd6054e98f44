#include "layers/forward_check.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "batch/request_check.h"
#include "batch/request_name.h"
#include "core/check.h"
#include "layers/layer_options_check.h"
#include "ops/kv_insert/row_checks.h"
#include "ops/linear/linear_checks.h"
#include "ops/sparse_attention/attention_checks.h"
#include "strata/op.h"

namespace strata {
namespace {

// The address range of a [T, width] view: of its first byte, and one past its last.
std::pair<uintptr_t, uintptr_t> bytes_of(const TensorView& v) {
  const auto begin = reinterpret_cast<uintptr_t>(v.data);
  const int64_t elements = v.numel() == 0 ? 0 : (v.shape[0] - 1) * v.stride[0] + v.shape[1];
  return {begin, begin + static_cast<uintptr_t>(elements) * size_of(v.dtype)};
}

// The output projection writes `out` after everything that reads `hidden` has finished, so a layer may run in place. Any other overlap is
// refused as a caller error.
void check_in_place(ParamCheck& c, const TensorView& hidden, const TensorView& out) {
  const auto [hidden_begin, hidden_end] = bytes_of(hidden);
  const auto [out_begin, out_end] = bytes_of(out);
  const bool apart = hidden_end <= out_begin || out_end <= hidden_begin;
  const bool same = hidden_begin == out_begin && (hidden.shape[0] <= 1 || hidden.stride[0] == out.stride[0]);
  c.require(apart || same, "out must be hidden itself or not overlap it, begins {} bytes after it and hidden has {}",
            static_cast<int64_t>(out_begin - hidden_begin), static_cast<int64_t>(hidden_end - hidden_begin));
}

// ", of request 2 (id 7),": the request that a row of the step belongs to; empty for rows of padding.
std::string of_request(const Batch& batch, int64_t row) {
  const auto& starts = batch.query_start_loc_host;
  const auto next = std::upper_bound(starts.begin(), starts.end(), row);
  if (next == starts.begin() || next == starts.end()) return "";
  const auto number = static_cast<size_t>(next - starts.begin()) - 1;
  const int64_t id = number < batch.request_ids_host.size() ? batch.request_ids_host[number] : -1;
  return fmt::format(", of {},", RequestName{static_cast<int64_t>(number), id});
}

// Also checks slots where the host can read them: each op checks only its own cache, and earlier ops would already have written to theirs.
void check_cache(ParamCheck& c, const CacheGroupSpec& spec, const Batch& batch, const LayerCaches& caches) {
  const PagedCache& cache = caches[spec.group];
  const GroupMetadata& group = batch[spec.group];
  const std::string_view name = to_string(spec.group);
  c.require(group.present, "the batch must have cache group {}, has not", name);
  ops::check_rows(c, name, cache, {spec.format}, spec.row_dim);
  c.require(cache.page_size == group.spec.page_size, "{} must have the batch's page_size {}, has {}", name, group.spec.page_size,
            cache.page_size);
  // Table entries are within the batch's pages, so the host need not read the tables to know that every row is inside the cache.
  c.require(cache.num_pages >= group.num_pages, "{} must have the batch's {} pages, has {}", name, group.num_pages, cache.num_pages);
  c.view(fmt::format("{} slot_mapping", name), group.slot_mapping, DType::i64, {batch.num_tokens});
  if (group.slot_mapping.device.kind != DeviceKind::cpu) return;
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    const int64_t slot = *group.slot_mapping.row<int64_t>(t);
    if (slot >= cache.num_slots()) {
      c.reject("{} slot_mapping[{}]{} must be below {}, is {}", name, t, of_request(batch, t), cache.num_slots(), slot);
    }
  }
}

// Checks a selection made by another layer or the caller, where the host can read it.
void check_given_topk(ParamCheck& c, const AttentionLayer& layer, const Batch& batch, const TensorView& topk) {
  if (topk.device.kind != DeviceKind::cpu) return;
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    if (*batch.is_valid_token.row<uint8_t>(t) == 0) continue;
    const int64_t position = *batch.positions.row<int64_t>(t), candidates = (position + 1) / layer.compress_ratio();
    const int32_t* row = topk.row<int32_t>(t);
    const int32_t* wrong = std::find_if(row, row + topk.shape[1], [&](int32_t entry) { return entry >= candidates; });
    if (wrong == row + topk.shape[1]) continue;
    c.reject("topk_indices[{}, {}]{} must be below the {} keys that position {} may select, is {}", t, wrong - row, of_request(batch, t),
             candidates, position, *wrong);
  }
}

bool selects(const std::vector<CacheGroupSpec>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const CacheGroupSpec& spec) {
    return spec.group == CacheGroup::c4_indexer || spec.group == CacheGroup::mla_indexer;
  });
}

}  // namespace

void check_layer_number(const ModelConfig& config, int64_t layer) {
  const int64_t layers = config.num_hidden_layers + config.num_nextn_predict_layers;
  require(layer >= 0 && layer < layers, "layer must be in [0, {}), of num_hidden_layers {} and num_nextn_predict_layers {}, is {}", layers,
          config.num_hidden_layers, config.num_nextn_predict_layers, layer);
}

const LayerOptions& check_context(const LayerContext& context) {
  const LayerOptions& options = context.options;
  require(context.rope_tables != nullptr, "layer {}: rope_tables are required, are null", context.layer);
  check_limits(options.limits);
  check_layer_options(context.checkpoint.config(), options);
  const RopeTables& tables = *context.rope_tables;
  require(tables.device()->id() == context.device->id(), "rope_tables must be on {}, are on {}", context.device->id(),
          tables.device()->id());
  require(tables.max_positions() >= options.limits.max_model_len, "rope_tables must have max_model_len {} rows, have {}",
          options.limits.max_model_len, tables.max_positions());
  const int tp = options.tp_size;
  const Communicator* communicator = context.communicator.get();
  require(communicator == nullptr || (communicator->rank() == options.tp_rank && communicator->size() == tp),
          "communicator must be of tp_rank {} of tp_size {}, is of {} of {}", options.tp_rank, tp, communicator ? communicator->rank() : 0,
          communicator ? communicator->size() : 0);
  return options;
}

void check_forward(const AttentionLayer& layer, const ForwardArgs& args, DeviceId device, const BatchLimits& limits, int64_t q_dim,
                   int64_t attn_out_dim) {
  ParamCheck c("forward", device);
  c.require(args.batch != nullptr || args.dummy_run, "batch is required, is null (a dummy run, without one, must be said: dummy_run)");
  c.require(args.batch == nullptr || !args.dummy_run, "batch must be null in a dummy run, is one of {} tokens",
            args.batch == nullptr ? 0 : args.batch->num_tokens);
  c.view("hidden", args.hidden, DType::bf16, {kAny, layer.hidden_size()});
  ops::check_row_alignment(c, "hidden", args.hidden);
  const int64_t num_tokens = args.hidden.shape[0];
  c.require(num_tokens <= limits.max_num_batched_tokens, "hidden must have at most max_num_batched_tokens {} rows, has {}",
            limits.max_num_batched_tokens, num_tokens);
  if (!args.dummy_run)
    c.require(args.batch->num_tokens == num_tokens, "hidden must have the batch's {} rows, has {}", args.batch->num_tokens, num_tokens);
  c.view("out", args.out, DType::bf16, {num_tokens, layer.hidden_size()});
  c.contiguous("out", args.out);
  ops::check_row_alignment(c, "out", args.out);
  check_in_place(c, args.hidden, args.out);
  if (args.dummy_run) return;

  const Batch& batch = *args.batch;
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
  const std::vector<CacheGroupSpec> groups = layer.cache_groups();
  for (const CacheGroupSpec& spec : groups) check_cache(c, spec, batch, args.caches);
  if (const int64_t topk = layer.index_topk(); topk > 0) {
    c.view("topk_indices", args.topk_indices, DType::i32, {kAny, topk});
    c.contiguous("topk_indices", args.topk_indices);
    c.require(args.topk_indices.shape[0] >= num_tokens, "topk_indices must have at least {} rows, has {}", num_tokens,
              args.topk_indices.shape[0]);
    c.view("is_valid_token of the batch", batch.is_valid_token, DType::u8, {num_tokens});
    if (args.skip_topk || !selects(groups)) check_given_topk(c, layer, batch, args.topk_indices);
  }
  const auto check_tap = [&](std::string_view name, const TensorView& tap, int64_t dim) {
    c.optional(name, tap, DType::bf16, {num_tokens, layer.num_heads(), dim});
    c.contiguous(name, tap);
    if (tap.present()) ops::check_row_alignment(c, name, tap);
  };
  check_tap("q_tap", args.q_tap, q_dim);
  check_tap("attn_out_tap", args.attn_out_tap, attn_out_dim);
  detail::check_workspace("forward", "the layer", layer.workspace_bytes(), args.workspace);
}

}  // namespace strata
