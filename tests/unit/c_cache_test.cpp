// Cache groups, page plans and pools of the C API: the C++ pool's pages, and every wrong use.
#include "c_calls.h"

#include <array>
#include <limits>
#include <vector>

#include "strata/attention.h"

namespace strata {
namespace {

using test::OwnedCDevice;
using test::OwnedConfig;
using test::OwnedPool;
using ::testing::HasSubstr;

// The groups of some layers of v4-tiny, for both APIs.
struct Groups {
  explicit Groups(const char* model = "v4-tiny") {
    limits.max_num_batched_tokens = 64;
    limits.max_num_seqs = 3;
    limits.max_model_len = 700;
    strata_layer_options options = strata_layer_options_default();
    options.limits = &limits;
    const OwnedConfig config = test::c_preset(model);
    const ModelConfig want = preset(model);
    LayerOptions cxx_options;
    cxx_options.limits = cxx_limits = {.max_num_batched_tokens = 64, .max_num_seqs = 3, .max_model_len = 700};
    for (int64_t layer = 0; layer < want.num_hidden_layers; ++layer) {
      std::array<strata_cache_group_spec, STRATA_NUM_CACHE_GROUPS> of_layer{};
      of_layer[0] = strata_cache_group_spec_default();
      int64_t count = 0;
      EXPECT_DONE(strata_cache_groups_of_layer(config, &options, layer, of_layer.data(), STRATA_NUM_CACHE_GROUPS, &count));
      specs.insert(specs.end(), of_layer.begin(), of_layer.begin() + count);
      counts.push_back(count);
      cxx.push_back(cache_groups_of_layer(want, cxx_options, layer));
    }
    groups = strata_layer_groups_default();
    groups.specs = specs.data();
    groups.num_specs = counts.data();
    groups.num_layers = std::ssize(counts);
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  strata_batch_limits limits = strata_batch_limits_default();
  BatchLimits cxx_limits;
  std::vector<strata_cache_group_spec> specs;
  std::vector<int64_t> counts;
  strata_layer_groups groups;
  std::vector<std::vector<CacheGroupSpec>> cxx;
};

void expect_same(const strata_cache_group_spec& got, const CacheGroupSpec& want) {
  EXPECT_EQ(got.struct_size, sizeof got);
  EXPECT_EQ(strata_cache_group_name(got.group), to_string(want.group));
  EXPECT_EQ(got.format, static_cast<int32_t>(want.format));
  EXPECT_EQ(got.row_dim, want.row_dim);
  EXPECT_EQ(got.page_size, want.page_size);
  EXPECT_EQ(got.ratio, want.ratio);
  EXPECT_EQ(got.page_bytes, want.page_bytes);
  EXPECT_EQ(got.retained, want.retained);
  EXPECT_EQ(got.num_query_heads, want.num_query_heads);
}

TEST(CCacheGroups, AreTheCxxOnes) {
  for (const char* model : {"v4-tiny", "v3.2-tiny", "v3-tiny"}) {
    const Groups groups(model);
    size_t i = 0;
    for (const auto& of_layer : groups.cxx) {
      for (const CacheGroupSpec& spec : of_layer) expect_same(groups.specs.at(i++), spec);
    }
    EXPECT_EQ(i, groups.specs.size());
  }
  EXPECT_EQ(strata_cache_group_name(-1), nullptr);
  EXPECT_EQ(strata_cache_group_name(STRATA_NUM_CACHE_GROUPS), nullptr);
}

TEST(CCacheGroups, SmallAndLargerElements) {
  const Groups groups;
  strata_layer_options options = strata_layer_options_default();
  options.limits = &groups.limits;
  const OwnedConfig config = test::c_preset("v4-tiny");
  const int64_t layer = 2;
  ASSERT_GE(groups.counts[layer], 2);
  int64_t count = 0;
  EXPECT_DONE(strata_cache_groups_of_layer(config, &options, layer, nullptr, 0, &count));
  EXPECT_EQ(count, groups.counts[layer]);
  // A struct of a later release: its new fields become zero, and elements lie that far apart.
  struct Later {
    strata_cache_group_spec spec;
    int64_t more[2];
  };
  std::array<Later, 3> later{};
  std::memset(later.data(), 0x55, sizeof later);
  later[0].spec.struct_size = sizeof(Later);
  ASSERT_DONE(strata_cache_groups_of_layer(config, &options, layer, &later[0].spec, 2, nullptr));
  const size_t first = static_cast<size_t>(groups.counts[0] + groups.counts[1]);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(later[i].spec.struct_size, sizeof(Later));
    EXPECT_EQ(later[i].spec.group, groups.specs[first + i].group);
    EXPECT_EQ(later[i].spec.page_bytes, groups.specs[first + i].page_bytes);
    EXPECT_EQ(later[i].more[1], 0);
  }
  EXPECT_EQ(later[2].spec.group, 0x55555555) << "capacity 2";
}

TEST(CPlanPages, IsTheCxxPlan) {
  for (const char* model : {"v4-tiny", "v3.2-tiny"}) {
    const Groups groups(model);
    for (const int64_t cached : {int64_t{0}, int64_t{900}}) {
      const auto want = plan_pages(groups.cxx, groups.cxx_limits, cached);
      std::array<int64_t, STRATA_NUM_CACHE_GROUPS + 2> pages{};
      pages.fill(-5);
      ASSERT_DONE(strata_plan_pages(&groups.groups, &groups.limits, cached, pages.data(), std::ssize(pages)));
      for (size_t g = 0; g < pages.size(); ++g) {
        const auto at = want.find(static_cast<CacheGroup>(g));
        EXPECT_EQ(pages[g], at == want.end() ? 0 : at->second) << g;
      }
    }
    const PagePlan want = plan_pages_within(int64_t{20} << 20, groups.cxx, groups.cxx_limits);
    std::array<int64_t, STRATA_NUM_CACHE_GROUPS> pages{};
    strata_page_plan plan = strata_page_plan_default();
    ASSERT_DONE(strata_plan_pages_within(int64_t{20} << 20, &groups.groups, &groups.limits, pages.data(), std::ssize(pages), &plan));
    EXPECT_EQ(plan.cached_positions, want.cached_positions);
    EXPECT_EQ(plan.bytes, want.bytes);
    for (const auto& [group, count] : want.pages) EXPECT_EQ(pages[static_cast<size_t>(group)], count);
    EXPECT_DONE(strata_plan_pages_within(int64_t{20} << 20, &groups.groups, &groups.limits, pages.data(), std::ssize(pages), nullptr));
  }
}

TEST(CPlanPages, WrongUse) {
  Groups groups;
  std::array<int64_t, STRATA_NUM_CACHE_GROUPS> pages{};
  pages.fill(-5);
  const auto plan = [&](const strata_layer_groups* g, const strata_batch_limits* l, int64_t cached = 0,
                        int64_t num_groups = STRATA_NUM_CACHE_GROUPS) { return strata_plan_pages(g, l, cached, pages.data(), num_groups); };
  EXPECT_FAILS(plan(nullptr, &groups.limits), STRATA_INVALID_ARGUMENT, "layer_groups: expected a strata_layer_groups, is null");
  EXPECT_FAILS(plan(&groups.groups, nullptr), STRATA_INVALID_ARGUMENT, "limits: expected a strata_batch_limits, is null");
  EXPECT_FAILS(plan(&groups.groups, &groups.limits, -1), STRATA_INVALID_ARGUMENT, "cached_positions must not be negative, is -1");
  EXPECT_FAILS(plan(&groups.groups, &groups.limits, 0, 3), STRATA_INVALID_ARGUMENT, "num_groups: expected more than");
  EXPECT_FAILS(plan(&groups.groups, &groups.limits, 0, -1), STRATA_INVALID_ARGUMENT, "capacity of pages: expected at least 0, is -1");
  EXPECT_FAILS(strata_plan_pages(&groups.groups, &groups.limits, 0, nullptr, 9), STRATA_INVALID_ARGUMENT, "pages: expected an array of 9");
  strata_batch_limits limits = groups.limits;
  limits.max_num_seqs = 0;
  EXPECT_FAILS(plan(&groups.groups, &limits), STRATA_INVALID_ARGUMENT, "max_num_seqs must be in [1, 2^31), is 0");
  const auto groups_refused = [&](auto&& change, const char* part) {
    Groups wrong;
    change(wrong);
    EXPECT_FAILS(plan(&wrong.groups, &wrong.limits), STRATA_INVALID_ARGUMENT, part);
  };
  groups_refused([](Groups& g) { g.groups.num_layers = -1; }, "number of layer_groups.num_specs: expected at least 0, is -1");
  groups_refused([](Groups& g) { g.groups.num_specs = nullptr; }, "layer_groups.num_specs: expected an array of");
  groups_refused([](Groups& g) { g.groups.specs = nullptr; }, "layer_groups.specs: expected an array of");
  groups_refused([](Groups& g) { g.counts[1] = -1; }, "layer_groups.num_specs: expected 0 to 9, is -1");
  groups_refused([](Groups& g) { g.counts[1] = std::numeric_limits<int64_t>::max(); }, "layer_groups.num_specs: expected 0 to 9, is 92");
  groups_refused([](Groups& g) { g.specs[1].group = 9; }, "spec.group: expected an enumerator, 0 to 8, is 9");
  groups_refused([](Groups& g) { g.specs[1].group = -1; }, "spec.group: expected an enumerator, 0 to 8, is -1");
  groups_refused([](Groups& g) { g.specs[1].format = 7; }, "spec.format: expected an enumerator, 0 to 6, is 7");
  groups_refused([](Groups& g) { g.specs[1].page_size = 0; }, "page_size must be positive, is 0");
  groups_refused([](Groups& g) { g.specs[1].struct_size += 8; }, "element 1 has struct_size 64, expected 56");
  test::expect_versions_refused(groups.groups, "strata_layer_groups", [&](auto* g) { return plan(g, &groups.limits); });
  pages.fill(-5);
  EXPECT_FAILS(strata_plan_pages_within(1, &groups.groups, &groups.limits, pages.data(), 9, nullptr), STRATA_INVALID_ARGUMENT,
               "bytes must be at least");
  strata_page_plan result = strata_page_plan_default();
  result.struct_size = 4;
  EXPECT_FAILS(strata_plan_pages_within(int64_t{20} << 20, &groups.groups, &groups.limits, pages.data(), 9, &result),
               STRATA_INVALID_ARGUMENT, "strata_page_plan: struct_size must be");
  for (const int64_t count : pages) EXPECT_EQ(count, -5) << "an error writes no result";
}

class CPool : public ::testing::Test {
 protected:
  static constexpr int64_t kPages = 300;

  CPool() {
    pages_.fill(kPages);
    params_.layer_groups = &groups_.groups;
    params_.pages = pages_.data();
    params_.num_groups = STRATA_NUM_CACHE_GROUPS;
    EXPECT_DONE(strata_pool_create(device_, &params_, &pool_));
  }
  strata_status create(const strata_pool_params* params) const {
    OwnedPool pool;
    const strata_status status = strata_pool_create(device_, params, &pool);
    if (status != STRATA_OK) {
      EXPECT_EQ(strata_pool(pool).value, 0u);
    }
    return status;
  }
  bool extend(int64_t id, int64_t first, int64_t len) const {
    int32_t extended = 7;
    EXPECT_DONE(strata_pool_extend(pool_, id, first, len, &extended));
    EXPECT_TRUE(extended == 0 || extended == 1);
    return extended == 1;
  }
  Groups groups_;
  std::array<int64_t, STRATA_NUM_CACHE_GROUPS> pages_{};
  strata_pool_params params_ = strata_pool_params_default();
  const OwnedCDevice device_ = test::open_c_device();
  OwnedPool pool_;
};

TEST_F(CPool, PagesAreThoseOfTheCxxPool) {
  std::map<CacheGroup, int64_t> pages;
  for (size_t g = 0; g < pages_.size(); ++g) pages.emplace(static_cast<CacheGroup>(g), kPages);
  PagedPool want(open_device({}), groups_.cxx, pages);
  int64_t value = 0;
  EXPECT_DONE(strata_pool_num_layers(pool_, &value));
  EXPECT_EQ(value, want.num_layers());
  EXPECT_DONE(strata_pool_allocated_bytes(pool_, &value));
  EXPECT_EQ(value, want.allocated_bytes());
  EXPECT_DONE(strata_pool_prefix_granularity(pool_, &value));
  EXPECT_EQ(value, want.prefix_granularity());
  std::array<strata_cache_group_spec, STRATA_NUM_CACHE_GROUPS> specs{};
  specs[0] = strata_cache_group_spec_default();
  EXPECT_DONE(strata_pool_groups(pool_, specs.data(), std::ssize(specs), &value));
  ASSERT_EQ(value, std::ssize(want.groups()));
  for (size_t i = 0; i < want.groups().size(); ++i) expect_same(specs[i], want.groups()[i]);

  const auto expect_same_state = [&](int64_t id) {
    for (const CacheGroupSpec& spec : want.groups()) {
      const auto group = static_cast<strata_cache_group>(spec.group);
      std::array<int32_t, kPages> table{};
      int64_t count = 0, first = 0, free = 0;
      EXPECT_DONE(strata_pool_block_table(pool_, id, group, table.data(), std::ssize(table), &count));
      EXPECT_EQ(std::vector<int32_t>(table.begin(), table.begin() + count), want.block_table(id, spec.group));
      EXPECT_DONE(strata_pool_first_block(pool_, id, group, &first));
      EXPECT_EQ(first, want.first_block(id, spec.group));
      EXPECT_DONE(strata_pool_free_pages(pool_, group, &free));
      EXPECT_EQ(free, want.free_pages(spec.group));
      EXPECT_DONE(strata_pool_num_pages(pool_, group, &count));
      EXPECT_EQ(count, kPages);
    }
  };
  EXPECT_DONE(strata_pool_add_request(pool_, 5));
  want.add_request(5);
  for (const auto& [first, len] : {std::pair<int64_t, int64_t>{0, 300}, {256, 301}, {301, 302}}) {
    EXPECT_EQ(extend(5, first, len), want.extend(5, first, len));
    expect_same_state(5);
    if (first != 256) continue;
    EXPECT_DONE(strata_pool_add_request_with_prefix(pool_, 6, 5, 256));
    want.add_request(6, {.request = 5, .positions = 256});
    expect_same_state(6);
  }
  EXPECT_DONE(strata_pool_mark_computed(pool_, 5, 302));
  want.mark_computed(5, 302);
  expect_same_state(5);
  EXPECT_DONE(strata_pool_remove_request(pool_, 5));
  want.remove_request(5);
  expect_same_state(6);
  EXPECT_DONE(strata_pool_remove_request(pool_, 6));
}

TEST_F(CPool, TooFewPagesChangeNothing) {
  EXPECT_DONE(strata_pool_add_request(pool_, 5));
  EXPECT_FALSE(extend(5, 0, 100000));
  int64_t free = 0;
  EXPECT_DONE(strata_pool_free_pages(pool_, STRATA_GROUP_WINDOW, &free));
  EXPECT_EQ(free, kPages);
}

TEST_F(CPool, CachesHaveTheFillByte) {
  const uint8_t fill = 0xA5;
  params_.fill = &fill;
  OwnedPool pool;
  ASSERT_DONE(strata_pool_create(device_, &params_, &pool));
  strata_paged_cache cache = strata_paged_cache_default();
  ASSERT_DONE(strata_pool_cache(pool, 0, STRATA_GROUP_WINDOW, &cache));
  EXPECT_EQ(cache.num_pages, kPages);
  EXPECT_EQ(cache.page_stride, groups_.specs[0].page_bytes);
  EXPECT_EQ(cache.device.kind, STRATA_CPU);
  EXPECT_EQ(static_cast<const uint8_t*>(cache.data)[cache.num_pages * cache.page_stride - 1], 0xA5);
  ASSERT_DONE(strata_pool_cache(pool, 0, STRATA_GROUP_MLA_LATENT, &cache));
  EXPECT_EQ(cache.page_size, 0) << "the layer does not have it";
  EXPECT_EQ(cache.data, nullptr);
}

TEST_F(CPool, WrongParams) {
  EXPECT_FAILS(create(nullptr), STRATA_INVALID_ARGUMENT, "params: expected a strata_pool_params, is null");
  EXPECT_FAILS(strata_pool_create(device_, &params_, nullptr), STRATA_INVALID_ARGUMENT, "pool: expected a pointer, is null");
  const auto refused = [&](auto&& change, strata_status status, const char* part) {
    strata_pool_params params = params_;
    change(params);
    EXPECT_FAILS(create(&params), status, part);
  };
  refused([](auto& p) { p.layer_groups = nullptr; }, STRATA_INVALID_ARGUMENT,
          "params.layer_groups: expected a strata_layer_groups, is null");
  refused([](auto& p) { p.pages = nullptr; }, STRATA_INVALID_ARGUMENT, "pages: expected an array of 9, is null");
  refused([](auto& p) { p.num_groups = -1; }, STRATA_INVALID_ARGUMENT, "number of pages: expected at least 0, is -1");
  refused([](auto& p) { p.num_groups = 1; }, STRATA_INVALID_ARGUMENT, "a number of pages is required for group c4_compressed, is absent");
  pages_[0] = -1;
  refused([](auto&) {}, STRATA_INVALID_ARGUMENT, "-1");
  pages_[0] = kPages;
  strata_cache_group_spec& second = groups_.specs[static_cast<size_t>(groups_.counts[0])];  // the window of layer 1
  second.page_bytes += 576;
  refused([](auto&) {}, STRATA_INVALID_ARGUMENT, "must have the same spec in all layers");
  second.page_bytes -= 576;
  groups_.specs[0].page_bytes = 10;
  refused([](auto&) {}, STRATA_INVALID_ARGUMENT, "page_bytes must be at least");
  groups_.specs[0].page_bytes = int64_t{1} << 60;
  EXPECT_NE(create(&params_), STRATA_OK);
  groups_.specs[0].page_bytes = groups_.cxx[0][0].page_bytes;
  test::expect_versions_refused(params_, "strata_pool_params", [&](const strata_pool_params* p) { return create(p); });
  OwnedPool pool;
  EXPECT_FAILS(strata_pool_create({}, &params_, &pool), STRATA_INVALID_HANDLE, "strata_device, is null");
}

TEST_F(CPool, WrongRequests) {
  int32_t extended = 7;
  int64_t value = 7;
  EXPECT_FAILS(strata_pool_extend(pool_, 5, 0, 1, &extended), STRATA_INVALID_ARGUMENT, "request 5 is not known");
  EXPECT_FAILS(strata_pool_mark_computed(pool_, 5, 0), STRATA_INVALID_ARGUMENT, "request 5 is not known");
  EXPECT_FAILS(strata_pool_remove_request(pool_, 5), STRATA_INVALID_ARGUMENT, "request 5 is not known");
  EXPECT_FAILS(strata_pool_block_table(pool_, 5, 0, nullptr, 0, &value), STRATA_INVALID_ARGUMENT, "request 5 is not known");
  EXPECT_FAILS(strata_pool_first_block(pool_, 5, 0, &value), STRATA_INVALID_ARGUMENT, "request 5 is not known");
  EXPECT_FAILS(strata_pool_add_request_with_prefix(pool_, 6, 5, 256), STRATA_INVALID_ARGUMENT, "request 5 is not known");
  EXPECT_DONE(strata_pool_add_request(pool_, 5));
  EXPECT_FAILS(strata_pool_add_request(pool_, 5), STRATA_INVALID_ARGUMENT, "request ids must be new, 5 is known");
  EXPECT_FAILS(strata_pool_extend(pool_, 5, 3, 2, &extended), STRATA_INVALID_ARGUMENT, "first_new_position must be in [0, seq_len = 2]");
  EXPECT_FAILS(strata_pool_extend(pool_, 5, 0, int64_t{1} << 40, &extended), STRATA_INVALID_ARGUMENT, "seq_len must be below 2^31");
  EXPECT_FAILS(strata_pool_extend(pool_, 5, 0, 1, nullptr), STRATA_INVALID_ARGUMENT, "extended: expected a pointer, is null");
  EXPECT_FAILS(strata_pool_mark_computed(pool_, 5, 1), STRATA_INVALID_ARGUMENT, "must have 1 pages for 1 computed positions, has 0");
  EXPECT_FAILS(strata_pool_add_request_with_prefix(pool_, 6, 5, 7), STRATA_INVALID_ARGUMENT, "a positive multiple of 256");
  EXPECT_FAILS(strata_pool_block_table(pool_, 5, STRATA_GROUP_MLA_LATENT, nullptr, 0, &value), STRATA_INVALID_ARGUMENT,
               "no group mla_latent");
  EXPECT_FAILS(strata_pool_block_table(pool_, 5, 0, nullptr, 1, &value), STRATA_INVALID_ARGUMENT, "table: expected an array of 1, is null");
  EXPECT_FAILS(strata_pool_first_block(pool_, 5, 9, &value), STRATA_INVALID_ARGUMENT, "group: expected an enumerator, 0 to 8, is 9");
  EXPECT_FAILS(strata_pool_first_block(pool_, 5, 0, nullptr), STRATA_INVALID_ARGUMENT, "block: expected a pointer, is null");
  for (const auto call : {strata_pool_free_pages, strata_pool_num_pages}) {
    EXPECT_FAILS(call(pool_, STRATA_GROUP_MLA_LATENT, &value), STRATA_INVALID_ARGUMENT, "it has no group mla_latent");
    EXPECT_FAILS(call(pool_, -1, &value), STRATA_INVALID_ARGUMENT, "group: expected an enumerator, 0 to 8, is -1");
    EXPECT_FAILS(call(pool_, 0, nullptr), STRATA_INVALID_ARGUMENT, "pages: expected a pointer, is null");
  }
  for (const auto call : {strata_pool_num_layers, strata_pool_allocated_bytes, strata_pool_prefix_granularity}) {
    EXPECT_FAILS(call(pool_, nullptr), STRATA_INVALID_ARGUMENT, "expected a pointer, is null");
  }
  strata_paged_cache cache = strata_paged_cache_default();
  EXPECT_FAILS(strata_pool_cache(pool_, -1, 0, &cache), STRATA_INVALID_ARGUMENT, "layer must be in [0, ");
  EXPECT_FAILS(strata_pool_cache(pool_, 1000, 0, &cache), STRATA_INVALID_ARGUMENT, "layer must be in [0, ");
  EXPECT_FAILS(strata_pool_cache(pool_, 0, 9, &cache), STRATA_INVALID_ARGUMENT, "group: expected an enumerator");
  EXPECT_FAILS(strata_pool_cache(pool_, 0, 0, nullptr), STRATA_INVALID_ARGUMENT, "cache: expected a strata_paged_cache, is null");
  cache.struct_size = 1;
  EXPECT_FAILS(strata_pool_cache(pool_, 0, 0, &cache), STRATA_INVALID_ARGUMENT, "strata_paged_cache: struct_size must be");
  EXPECT_EQ(cache.data, nullptr);
  std::array<strata_cache_group_spec, 2> specs{};
  EXPECT_FAILS(strata_pool_groups(pool_, specs.data(), 2, &value), STRATA_INVALID_ARGUMENT, "strata_cache_group_spec: struct_size must be");
  EXPECT_FAILS(strata_pool_groups(pool_, nullptr, 2, &value), STRATA_INVALID_ARGUMENT, "specs: expected an array of 2, is null");
  EXPECT_EQ(extended, 7);
  EXPECT_EQ(value, 7);
}

TEST_F(CPool, DestroyedHandles) {
  const strata_pool gone = pool_.reset();
  int32_t extended = 0;
  int64_t value = 0;
  strata_paged_cache cache = strata_paged_cache_default();
  EXPECT_FAILS(strata_pool_add_request(gone, 1), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_add_request_with_prefix(gone, 1, 2, 256), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_extend(gone, 1, 0, 1, &extended), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_mark_computed(gone, 1, 0), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_remove_request(gone, 1), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_block_table(gone, 1, 0, nullptr, 0, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_first_block(gone, 1, 0, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_free_pages(gone, 0, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_num_pages(gone, 0, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_num_layers(gone, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_allocated_bytes(gone, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_prefix_granularity(gone, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_groups(gone, nullptr, 0, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_cache(gone, 0, 0, &cache), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_pool_destroy(gone), STRATA_INVALID_HANDLE, "which is destroyed");
}

}  // namespace
}  // namespace strata
