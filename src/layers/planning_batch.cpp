#include "layers/planning_batch.h"

#include <algorithm>

namespace strata {

Batch planning_batch(DeviceId device, const BatchLimits& limits, const std::vector<CacheGroupSpec>& groups, int64_t window,
                     int64_t num_tokens, BatchPart part) {
  const auto shape_only = [&](DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView::contiguous(nullptr, dtype, device, shape);
  };
  const int64_t num_requests = std::min(limits.max_num_seqs, num_tokens);
  Batch batch;
  batch.limits = limits;
  batch.num_tokens = batch.num_actual_tokens = num_tokens;
  batch.num_requests = num_requests;
  (part == BatchPart::decode ? batch.num_decodes : batch.num_prefills) = num_requests;
  (part == BatchPart::decode ? batch.num_decode_tokens : batch.num_prefill_tokens) = num_tokens;
  batch.max_query_len = part == BatchPart::decode ? 1 : num_tokens;
  batch.max_seq_len = limits.max_model_len;
  batch.positions = shape_only(DType::i64, {num_tokens});
  batch.query_start_loc = shape_only(DType::i32, {num_requests + 1});
  batch.token_to_req = shape_only(DType::i32, {num_tokens});
  batch.is_valid_token = shape_only(DType::u8, {num_tokens});
  for (TensorView* lens : {&batch.seq_lens, &batch.gather_lens, &batch.c4_seq_lens, &batch.c128_seq_lens}) {
    *lens = shape_only(DType::i32, {num_requests});
  }
  for (TensorView* lens : {&batch.swa_lens, &batch.c4_lens, &batch.c128_lens}) *lens = shape_only(DType::i32, {num_tokens});
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
  if (part == BatchPart::prefill) {
    for (size_t i = 0; i < batch.chunks.size(); ++i) {
      constexpr int32_t kRatios[] = {1, 4, 128};
      const int64_t rows = prefill_workspace_rows(limits, kRatios[i], window);
      batch.chunks[i].push_back(PrefillChunk{.num_requests = 1, .num_tokens = num_tokens, .max_rows = rows});
    }
  }
  return batch;
}

LayerCaches planning_caches(DeviceId device, const std::vector<CacheGroupSpec>& groups) {
  LayerCaches caches;
  for (const CacheGroupSpec& spec : groups) {
    caches[spec.group] = PagedCache{.device = device,
                                    .format = spec.format,
                                    .row_dim = spec.row_dim,
                                    .page_size = spec.page_size,
                                    .num_pages = 1,
                                    .page_stride = spec.page_bytes};
  }
  return caches;
}

}  // namespace strata
