#include "layers/v4_cache_groups.h"

#include <algorithm>

#include "core/check.h"
#include "layers/indexer.h"

namespace strata {
namespace {

// One compressed page covers 256 positions; window pages and compressor states have the sizes of vLLM's caches.
constexpr int32_t kWindowPageSize = 64;
constexpr int32_t kCompressedSpan = 256;

}  // namespace

std::vector<CacheGroupSpec> v4_cache_groups(const ModelConfig& config, const LayerOptions& options, int32_t ratio) {
  // With fp8_ds_mla_v4 caches every page is a multiple of 576 bytes, the alignment that FlashMLA requires; otherwise of 512.
  const KvFormat keys = options.kv_format.value_or(KvFormat::fp8_ds_mla_v4);
  if (keys != KvFormat::bf16 && keys != KvFormat::fp8_tensor && keys != KvFormat::fp8_ds_mla_v4) {
    fail(ErrorCode::unsupported, "kv_format must be bf16, fp8_tensor or fp8_ds_mla_v4 for V4 layers, is {}", to_string(keys));
  }
  const int64_t alignment = keys == KvFormat::fp8_ds_mla_v4 ? 576 : 512;
  const auto spec = [&](CacheGroup group, KvFormat format, int64_t row_dim, int32_t page_size, int32_t positions_per_row,
                        int64_t retained) {
    return CacheGroupSpec{.group = group,
                          .format = format,
                          .row_dim = static_cast<int32_t>(row_dim),
                          .page_size = page_size,
                          .ratio = positions_per_row,
                          .page_bytes = page_padded_bytes(format, row_dim, page_size, alignment),
                          .retained = retained};
  };
  std::vector<CacheGroupSpec> groups;
  groups.push_back(spec(CacheGroup::window, keys, config.head_dim, kWindowPageSize, 1, config.sliding_window));
  if (ratio == 4) {
    const KvFormat indexer = indexer_kv_format(options.indexer_format);
    groups.push_back(spec(CacheGroup::c4_compressed, keys, config.head_dim, kCompressedSpan / 4, 4, 0));
    groups.push_back(spec(CacheGroup::c4_state, KvFormat::state_f32, 4 * config.head_dim, 4, 1, 8));
    groups.push_back(spec(CacheGroup::c4_indexer, indexer, config.index_head_dim, kCompressedSpan / 4, 4, 0));
    groups.push_back(spec(CacheGroup::c4_indexer_state, KvFormat::state_f32, 4 * config.index_head_dim, 4, 1, 8));
  } else if (ratio == 128) {
    groups.push_back(spec(CacheGroup::c128_compressed, keys, config.head_dim, kCompressedSpan / 128, 128, 0));
    groups.back().num_query_heads = static_cast<int32_t>(config.num_attention_heads / std::max(options.tp_size, 1));
    groups.push_back(spec(CacheGroup::c128_state, KvFormat::state_f32, 2 * config.head_dim, 8, 1, 128));
  }
  return groups;
}

}  // namespace strata
