// The caches of a model by cache group: pages, bytes, words.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "strata/attention.h"

namespace strata::cli {

struct PlannedGroup {
  CacheGroupSpec spec;
  int64_t layers = 0;
};

class CachePlan {
 public:
  // layer_groups: the cache groups of each layer.
  explicit CachePlan(const std::vector<std::vector<CacheGroupSpec>>& layer_groups);

  const std::map<CacheGroup, PlannedGroup>& groups() const { return groups_; }
  // Pages of one layer. Throws invalid_argument from 2^31 on, as page numbers have 32 bits.
  static int64_t pages(const CacheGroupSpec& spec, const BatchLimits& limits);
  // Bytes of a group in all its layers, and of all groups.
  static int64_t bytes(const PlannedGroup& group, const BatchLimits& limits);
  int64_t bytes(const BatchLimits& limits) const;

 private:
  std::map<CacheGroup, PlannedGroup> groups_;
};

// What the group's rows are and who reads them.
std::string explain(const CacheGroupSpec& spec);

// Bytes of a position in all layers if every layer kept the keys of every position in bf16, without compression, those of its indexer
// included: what the plots compare with.
int64_t bf16_bytes_of_position(const ModelConfig& config, const std::vector<std::vector<CacheGroupSpec>>& layer_groups);

}  // namespace strata::cli
