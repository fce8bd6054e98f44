#include "layers/planning_batch.h"

#include <algorithm>

#include "batch/request_check.h"

namespace strata {

Batch planning_batch(DeviceId device, const BatchLimits& limits, const std::vector<CacheGroupSpec>& groups, int64_t window,
                     int64_t num_tokens, int64_t num_decode_tokens) {
  const auto shape_only = [&](DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView::contiguous(nullptr, dtype, device, shape);
  };
  const int64_t num_prefill_tokens = num_tokens - num_decode_tokens;
  // As many requests as a step may have, most of them possibly without tokens.
  const int64_t num_decodes = num_decode_tokens > 0 ? limits.max_num_seqs : 0;
  const int64_t num_requests = limits.max_num_seqs + (num_decodes > 0 && num_prefill_tokens > 0 ? 1 : 0);
  Batch batch;
  batch.limits = limits;
  batch.num_tokens = batch.num_actual_tokens = num_tokens;
  batch.num_requests = num_requests;
  batch.num_decodes = num_decodes;
  batch.num_prefills = num_requests - num_decodes;
  batch.num_decode_tokens = num_decode_tokens;
  batch.num_prefill_tokens = num_prefill_tokens;
  batch.max_query_len = std::max(num_prefill_tokens, num_decodes > 0 ? int64_t{1} + limits.num_speculative_tokens : 0);
  batch.max_seq_len = limits.max_model_len;
  batch.positions = shape_only(DType::i64, {num_tokens});
  batch.query_start_loc = shape_only(DType::i32, {num_requests + 1});
  batch.token_to_req = shape_only(DType::i32, {num_tokens});
  batch.is_valid_token = shape_only(DType::u8, {num_tokens});
  for (TensorView* lens : {&batch.seq_lens, &batch.gather_lens, &batch.c4_seq_lens, &batch.c128_seq_lens}) {
    *lens = shape_only(DType::i32, {num_requests});
  }
  for (TensorView* lens : {&batch.swa_lens, &batch.c4_lens, &batch.c128_lens, &batch.mla_lens})
    *lens = shape_only(DType::i32, {num_tokens});
  batch.swa_indices = shape_only(DType::i32, {num_tokens, window});
  for (const CacheGroupSpec& spec : groups) {
    GroupMetadata& group = batch.groups[static_cast<size_t>(spec.group)];
    group.present = true;
    group.spec = spec;
    group.block_table = shape_only(DType::i32, {num_requests, spec.pages_for(limits.max_model_len)});
    group.slot_mapping = shape_only(DType::i64, {num_tokens});
    if (spec.group == CacheGroup::c128_compressed) {
      const int64_t width = c128_width(limits.max_model_len);
      batch.c128_slots = shape_only(DType::i32, {num_tokens, width});
      batch.c128_local = shape_only(DType::i32, {num_tokens, width});
    }
  }
  // The first request of a kind has all its tokens.
  batch.query_start_loc_host.push_back(0);
  for (int64_t r = 0; r < num_requests; ++r) {
    const int64_t tokens = r == num_decodes ? num_prefill_tokens : r == 0 ? num_decode_tokens : 0;
    const bool earlier_context = r == 0 || r == num_decodes;
    batch.seq_lens_host.push_back(static_cast<int32_t>(tokens + (earlier_context ? limits.max_model_len : 0)));
    batch.query_start_loc_host.push_back(batch.query_start_loc_host.back() + static_cast<int32_t>(tokens));
  }
  if (num_decode_tokens == 0) {
    for (size_t i = 0; i < batch.chunks.size(); ++i) {
      constexpr int32_t kRatios[] = {1, 4, 128};
      const int64_t rows = prefill_workspace_rows(limits, kRatios[i], window);
      batch.chunks[i].push_back(PrefillChunk{.num_requests = 1, .num_tokens = num_tokens, .max_rows = rows});
    }
  }
  return batch;
}

LayerCaches planning_caches(DeviceId device, const std::vector<CacheGroupSpec>& groups, CacheGeometry geometry) {
  LayerCaches caches;
  for (const CacheGroupSpec& spec : groups) {
    const bool easy = geometry == CacheGeometry::easy;
    const int64_t page_stride = spec.page_bytes + (easy ? 0 : 8);
    caches[spec.group] = PagedCache{.device = device,
                                    .format = spec.format,
                                    .row_dim = spec.row_dim,
                                    .page_size = spec.page_size,
                                    .num_pages = easy ? 1 : (int64_t{1} << 37) / page_stride,
                                    .page_stride = page_stride};
  }
  return caches;
}

int64_t measure_workspace(const AttentionLayer& layer, const std::shared_ptr<Device>& device, const OpSet& ops, const BatchLimits& limits,
                          int64_t window, const SideStreams* side_streams,
                          const std::function<void(const ForwardArgs&, const OpRunner&)>& run) {
  const DeviceId id = device->id();
  const std::vector<CacheGroupSpec> groups = layer.cache_groups();
  const auto shape_only = [&](DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView::contiguous(nullptr, dtype, id, shape);
  };
  int64_t peak = 0;
  const auto measure_with = [&](int64_t tokens, int64_t decode_tokens, CacheGeometry geometry) {
    const Batch batch = planning_batch(id, limits, groups, window, tokens, decode_tokens);
    ForwardArgs args;
    args.batch = &batch;
    args.caches = planning_caches(id, groups, geometry);
    args.hidden = shape_only(DType::bf16, {tokens, layer.hidden_size()});
    args.out = args.hidden;
    if (layer.index_topk() > 0) args.topk_indices = shape_only(DType::i32, {tokens, layer.index_topk()});
    Arena arena(id);
    run(args, OpRunner{ops, *device, arena, {}, side_streams});
    peak = std::max(peak, arena.peak());
  };
  const auto measure = [&](int64_t tokens, int64_t decode_tokens) {
    for (const CacheGeometry geometry : {CacheGeometry::easy, CacheGeometry::hard}) measure_with(tokens, decode_tokens, geometry);
  };
  // The selected implementation may change with the number of tokens, so small steps, and small decode shares of large ones, are measured
  // too.
  const int64_t most_tokens = limits.max_num_batched_tokens;
  const int64_t most_decodes = most_decode_tokens(limits);
  for (int64_t n = most_decodes; n > 0; n /= 2) measure(most_tokens, n);
  for (int64_t tokens = most_tokens; tokens > 0; tokens /= 2) {
    measure(tokens, std::min(tokens, most_decodes));
    measure(tokens, 0);
  }
  return peak;
}

}  // namespace strata
