#include "cache_plan.h"

#include <fmt/format.h>

#include <limits>

#include "strata/error.h"

namespace strata::cli {

CachePlan::CachePlan(const std::vector<std::vector<CacheGroupSpec>>& layer_groups) {
  for (const std::vector<CacheGroupSpec>& of_layer : layer_groups) {
    for (const CacheGroupSpec& spec : of_layer) {
      groups_[spec.group].spec = spec;
      groups_[spec.group].layers += 1;
    }
  }
}

int64_t CachePlan::pages(const CacheGroupSpec& spec, const BatchLimits& limits) {
  const std::vector<CacheGroupSpec> group{spec};
  const int64_t count = plan_pages({&group, 1}, limits, limits.max_num_seqs * limits.max_model_len).at(spec.group);
  if (count > std::numeric_limits<int32_t>::max()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--context and --requests must need fewer than 2^31 pages of each group, need {} of {}", count, to_string(spec.group)));
  }
  return count;
}

int64_t CachePlan::bytes(const PlannedGroup& group, const BatchLimits& limits) {
  return group.layers * pages(group.spec, limits) * group.spec.page_bytes;
}

int64_t CachePlan::bytes(const BatchLimits& limits) const {
  int64_t sum = 0;
  for (const auto& [id, group] : groups_) sum += bytes(group, limits);
  return sum;
}

std::string explain(const CacheGroupSpec& spec) {
  switch (spec.group) {
    case CacheGroup::window: return fmt::format("keys of a request's last {} positions; every layer attends to them", spec.retained);
    case CacheGroup::c4_compressed: return "one compressed key for 4 positions; 4:1 layers attend to those that their indexer selects";
    case CacheGroup::c4_indexer: return "one indexer key for 4 positions; 4:1 layers select compressed keys by them";
    case CacheGroup::c4_state:
      return fmt::format("inputs of the 4:1 compressor for the last {} positions, of which it makes the next compressed key",
                         spec.retained);
    case CacheGroup::c4_indexer_state:
      return fmt::format("inputs of the indexer's compressor for the last {} positions, of which it makes the next indexer key",
                         spec.retained);
    case CacheGroup::c128_compressed: return "one compressed key for 128 positions; 128:1 layers attend to all of them";
    case CacheGroup::c128_state:
      return fmt::format("inputs of the 128:1 compressor for the last {} positions, of which it makes the next compressed key",
                         spec.retained);
    case CacheGroup::mla_latent:
      return "one latent row for a position, keys and values of all heads in one; every layer attends to its own";
    case CacheGroup::mla_indexer: return "one indexer key for a position; sparse layers select latent rows by them";
  }
  return "";
}

int64_t bf16_bytes_of_position(const ModelConfig& config, const std::vector<std::vector<CacheGroupSpec>>& layer_groups) {
  constexpr int64_t kBf16Bytes = 2;
  const bool v4 = config.family == ModelFamily::deepseek_v4;
  int64_t values = 0;
  for (const std::vector<CacheGroupSpec>& of_layer : layer_groups) {
    values += v4 ? config.head_dim : config.kv_lora_rank + config.qk_rope_head_dim;
    for (const CacheGroupSpec& spec : of_layer) {
      if (spec.group == CacheGroup::c4_indexer || spec.group == CacheGroup::mla_indexer) values += config.index_head_dim;
    }
  }
  return values * kBf16Bytes;
}

}  // namespace strata::cli
