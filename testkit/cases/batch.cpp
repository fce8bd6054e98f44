// Building a step's metadata, with every cache group of V4-Flash: what `strata bench --op batch` times.
#include <algorithm>
#include <array>

#include "testkit/harness/lambda_case.h"
#include "testkit/cases/registry.h"
#include "strata/attention.h"

namespace strata::testkit {
namespace {

struct State {
  std::unique_ptr<BatchBuilder> builder;
  std::vector<std::array<std::vector<int32_t>, kNumCacheGroups>> tables;
  std::vector<BatchRequest> requests;
};

std::vector<CacheGroupSpec> groups_of(const ModelConfig& config, const LayerOptions& options) {
  std::vector<CacheGroupSpec> groups;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const CacheGroupSpec& spec : cache_groups_of_layer(config, options, layer)) {
      const auto same = [&](const CacheGroupSpec& known) { return known.group == spec.group; };
      if (std::none_of(groups.begin(), groups.end(), same)) groups.push_back(spec);
    }
  }
  return groups;
}

Work prepare(int64_t requests, int64_t context, const OpSet& ops, const std::shared_ptr<Device>& device) {
  constexpr int64_t kPages = 1 << 20;
  const ModelConfig config = preset("v4-flash");
  LayerOptions options;
  options.limits = {.max_num_batched_tokens = requests, .max_num_seqs = requests, .max_model_len = context};
  const std::vector<CacheGroupSpec> groups = groups_of(config, options);
  auto state = std::make_shared<State>();
  state->builder = std::make_unique<BatchBuilder>(device, ops, options.limits, groups, std::vector<int64_t>(groups.size(), kPages),
                                                  config.sliding_window);
  state->tables.resize(static_cast<size_t>(requests));
  double entries = 0;
  int32_t page = 0;
  for (auto& tables : state->tables) {
    BatchRequest& request = state->requests.emplace_back(BatchRequest{.seq_len = context, .query_len = 1});
    for (const CacheGroupSpec& spec : groups) {
      std::vector<int32_t>& table = tables[static_cast<size_t>(spec.group)];
      for (int64_t i = 0; i < spec.pages_for(context); ++i) table.push_back(page++ % kPages);
      request.block_tables[spec.group] = table;
      if (spec.retained == 0) entries += static_cast<double>(table.size());
    }
  }
  Work work;
  work.bytes = 4.0 * entries;  // what a step must read of the tables of groups that keep every position
  work.call = [state](size_t, Stream stream) { static_cast<void>(state->builder->build(state->requests, {}, stream)); };
  return work;
}

}  // namespace

void add_batch(CaseList& list) {
  for (const int64_t context : {8192, 131072, 1048576}) {
    list.push_back(std::make_unique<LambdaCase>("batch", "decode-b64-context" + std::to_string(context),
                                                [context](const OpSet& ops, const std::shared_ptr<Device>& device, const WorkOptions&) {
                                                  return prepare(64, context, ops, device);
                                                }));
  }
}

}  // namespace strata::testkit
