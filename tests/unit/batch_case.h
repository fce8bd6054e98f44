// Builders of steps for the batch tests: V4 and MLA cache groups, requests with random block tables.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "unit/batch_oracle.h"

namespace strata::oracle {

inline CacheGroupSpec group_spec(CacheGroup group, int32_t page_size, int32_t ratio, int64_t retained) {
  return {.group = group,
          .format = KvFormat::fp8_tensor,
          .row_dim = 16,
          .page_size = page_size,
          .ratio = ratio,
          .page_bytes = int64_t{16} * page_size,
          .retained = retained};
}

// Every group of V4 with the page sizes of the specification.
inline std::vector<CacheGroupSpec> v4_groups(int64_t window = 128) {
  return {group_spec(CacheGroup::window, 64, 1, window),     group_spec(CacheGroup::c4_compressed, 64, 4, 0),
          group_spec(CacheGroup::c4_indexer, 64, 4, 0),      group_spec(CacheGroup::c4_state, 4, 1, 8),
          group_spec(CacheGroup::c4_indexer_state, 4, 1, 8), group_spec(CacheGroup::c128_compressed, 2, 128, 0),
          group_spec(CacheGroup::c128_state, 8, 1, 128)};
}

inline Model v4_model(const BatchLimits& limits, int64_t window = 128, int64_t num_pages = 10000) {
  Model m{limits, v4_groups(window), {}, window};
  m.num_pages.assign(m.groups.size(), num_pages);
  return m;
}

// Requests that own their tables.
struct Step {
  std::vector<BatchRequest> requests;
  BatchPadding padding;
  std::vector<std::unique_ptr<std::array<std::vector<int32_t>, kNumCacheGroups>>> tables;

  // A request with random pages; `slack` more table entries than positions need.
  void add(const Model& m, int64_t seq_len, int64_t query_len, std::mt19937& random, int64_t slack = 0) {
    tables.push_back(std::make_unique<std::array<std::vector<int32_t>, kNumCacheGroups>>());
    BatchRequest request{.seq_len = seq_len, .query_len = query_len};
    for (size_t g = 0; g < m.groups.size(); ++g) {
      const auto index = static_cast<size_t>(m.groups[g].group);
      std::vector<int32_t>& table = (*tables.back())[index];
      table.resize(static_cast<size_t>(m.groups[g].pages_for(seq_len) + slack));
      for (int32_t& page : table) page = static_cast<int32_t>(random() % static_cast<uint32_t>(m.num_pages[g]));
      request.block_tables[m.groups[g].group] = table;
    }
    requests.push_back(request);
  }
  std::vector<int32_t>& table(size_t request, CacheGroup group) { return (*tables[request])[static_cast<size_t>(group)]; }
  // After a table was resized.
  void rebind() {
    for (size_t r = 0; r < requests.size(); ++r) {
      for (size_t g = 0; g < kNumCacheGroups; ++g) requests[r].block_tables[static_cast<CacheGroup>(g)] = (*tables[r])[g];
    }
  }
};

}  // namespace strata::oracle
