#include "layers/mla_cache_groups.h"

#include <algorithm>

#include "core/check.h"
#include "formats/kv_rows.h"

namespace strata {
namespace {

constexpr int32_t kPageSize = 64;  // as in vLLM's and FlashMLA's caches

// Pages without padding: FlashMLA reads [num_blocks, page_size, row] tensors.
CacheGroupSpec spec(CacheGroup group, KvFormat format, int64_t row_dim) {
  return {.group = group,
          .format = format,
          .row_dim = static_cast<int32_t>(row_dim),
          .page_size = kPageSize,
          .page_bytes = page_payload_bytes(format, row_dim, kPageSize)};
}

KvFormat latent_format(const ModelConfig& config, const LayerOptions& options) {
  const KvFormat format = options.kv_format.value_or(KvFormat::bf16);
  if (format != KvFormat::bf16 && format != KvFormat::fp8_tensor && format != KvFormat::fp8_ds_mla) {
    fail(ErrorCode::unsupported, "kv_format must be bf16, fp8_tensor or fp8_ds_mla for MLA layers, is {}", to_string(format));
  }
  if (format == KvFormat::fp8_ds_mla && (config.kv_lora_rank != kMlaLatentDim || config.qk_rope_head_dim != kMlaRopeDim)) {
    fail(ErrorCode::unsupported, "kv_format fp8_ds_mla needs kv_lora_rank {} and qk_rope_head_dim {}, has {} and {}", int{kMlaLatentDim},
         int{kMlaRopeDim}, config.kv_lora_rank, config.qk_rope_head_dim);
  }
  return format;
}

KvFormat indexer_format(IndexerFormat format) {
  if (format == IndexerFormat::mxfp4) fail(ErrorCode::unsupported, "indexer_format must be fp8 or none for MLA layers, is mxfp4");
  return format == IndexerFormat::fp8 ? KvFormat::indexer_fp8 : KvFormat::bf16;
}

}  // namespace

std::vector<CacheGroupSpec> mla_cache_groups(const ModelConfig& config, const LayerOptions& options, int64_t layer) {
  std::vector<CacheGroupSpec> groups{
      spec(CacheGroup::mla_latent, latent_format(config, options), config.kv_lora_rank + config.qk_rope_head_dim)};
  // With an indexer, work follows the selected rows, of which every token has the same number.
  const bool dense = config.index_topk == 0;
  if (dense) groups.back().num_query_heads = static_cast<int32_t>(config.num_attention_heads / std::max(options.tp_size, 1));
  // A layer that shares the selection of an earlier one has no indexer, and no indexer keys (MLA 12).
  if (config.index_topk > 0 && !config.skip_topk(layer)) {
    groups.push_back(spec(CacheGroup::mla_indexer, indexer_format(options.indexer_format), config.index_head_dim));
  }
  return groups;
}

}  // namespace strata
