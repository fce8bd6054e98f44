// Cache groups, what they are compared with, and what fits.
#include "cache_plan.h"

#include <gmock/gmock.h>

#include "plan_fit.h"
#include "strata/error.h"

namespace strata::cli {
namespace {

LayerOptions options_of(int64_t requests, int64_t context, int tp = 1) {
  LayerOptions options;
  options.limits = {.max_num_batched_tokens = 256, .max_num_seqs = requests, .max_model_len = context};
  options.tp_size = tp;
  return options;
}

std::vector<std::vector<CacheGroupSpec>> groups_of(const ModelConfig& config) {
  std::vector<std::vector<CacheGroupSpec>> groups;
  for (int64_t layer = 0; layer < config.num_hidden_layers + config.num_nextn_predict_layers; ++layer) {
    groups.push_back(cache_groups_of_layer(config, {}, layer));
  }
  return groups;
}

TEST(CachePlan, BytesAreThoseOfAPool) {
  for (const char* name : {"v4-tiny", "v3-tiny", "v3.2-tiny"}) {
    const auto groups = groups_of(preset(name));
    const BatchLimits limits = options_of(3, 1000).limits;
    const PagedPool pool(open_device({}), groups, plan_pages(groups, limits, 3000));
    EXPECT_EQ(CachePlan(groups).bytes(limits), static_cast<int64_t>(pool.allocated_bytes())) << name;
  }
}

TEST(CachePlan, ExplainsEveryGroupInItsOwnWords) {
  std::vector<std::string> texts;
  for (const char* name : {"v4-pro", "v3.2"}) {
    const CachePlan plan(groups_of(preset(name)));
    for (const auto& [id, group] : plan.groups()) texts.push_back(explain(group.spec));
  }
  EXPECT_EQ(texts.size(), kNumCacheGroups);
  std::sort(texts.begin(), texts.end());
  EXPECT_EQ(std::adjacent_find(texts.begin(), texts.end()), texts.end());
  EXPECT_GT(texts.front().size(), 20u);
}

TEST(CachePlan, Bf16BaselineKeepsEveryPositionAndTheIndexersKeys) {
  const auto baseline = [](const char* name) {
    const ModelConfig config = preset(name);
    return bf16_bytes_of_position(config, groups_of(config));
  };
  EXPECT_EQ(baseline("v4-pro"), 62 * 2 * 512 + 30 * 2 * 128);  // 62 layers, 30 of them 4:1
  EXPECT_EQ(baseline("v3"), 62 * 2 * 576);
  EXPECT_EQ(baseline("v3.2"), 62 * 2 * (576 + 128));
}

TEST(CachePlan, NamesAGroupThatNeedsTooManyPages) {
  const CachePlan plan(groups_of(preset("v3-tiny")));
  try {
    plan.bytes(options_of(1 << 20, 1 << 20).limits);
    FAIL() << "2^34 pages were planned";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("2^31 pages"));
    EXPECT_THAT(error.what(), testing::HasSubstr("mla_latent"));
  }
}

TEST(PlanFit, WhatFitsFitsAndOneMoreDoesNot) {
  const auto device = open_device({});
  for (const char* name : {"v4-tiny", "v3-tiny", "v3.2-tiny"}) {
    SCOPED_TRACE(name);
    const runner::PlannedModel model(preset(name), device);
    const auto total = [&](int64_t requests, int64_t context) {
      LayerOptions options = options_of(requests, context);
      options.limits.max_num_batched_tokens = std::max<int64_t>(256, requests);
      const runner::PlannedMemory rest = model.memory(options);
      return rest.weight_bytes() + rest.workspace_bytes() + CachePlan(model.cache_groups(options)).bytes(options.limits);
    };
    const PlanFit fit(model, options_of(2, 2000));
    for (const int64_t bytes : {int64_t{200000000}, int64_t{1000000000}}) {
      const int64_t requests = fit.most_requests(bytes, 2000, 1 << 20);
      ASSERT_GT(requests, 0);
      EXPECT_LE(total(requests, 2000), bytes);
      EXPECT_GT(total(requests + 1, 2000), bytes);
      const int64_t positions = fit.most_positions(bytes, 2, 100000);
      ASSERT_GT(positions, 0);
      EXPECT_LE(total(2, positions), bytes);
      EXPECT_TRUE(positions == 100000 || total(2, positions + 1) > bytes);
    }
    EXPECT_EQ(fit.most_requests(1000, 2000, 1 << 20), 0);
    EXPECT_EQ(fit.most_positions(1000, 2, 100000), 0);
    EXPECT_EQ(fit.most_requests(int64_t{1} << 50, 2000, 5), 5);
  }
}

TEST(PlanFit, CountsTheRankThatTakesMost) {
  const auto device = open_device({}, {.cpu_isa = CpuIsa::portable});
  ModelConfig config = preset("v3-tiny");
  const runner::PlannedModel model(config, device);
  int64_t most = 0;
  for (int rank = 0; rank < 4; ++rank) {
    LayerOptions options = options_of(2, 2000, 4);
    options.tp_rank = rank;
    const runner::PlannedMemory memory = model.memory(options);
    most = std::max(most, memory.weight_bytes() + memory.workspace_bytes());
  }
  const runner::PlannedMemory planned = PlanFit(model, options_of(2, 2000, 4)).memory();
  EXPECT_EQ(planned.weight_bytes() + planned.workspace_bytes(), most);
}

}  // namespace
}  // namespace strata::cli
