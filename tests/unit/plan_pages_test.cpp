// Pages that a pool must have so that it never refuses: enough for every schedule of steps, and for a full one not many more.
#include <gmock/gmock.h>

#include <limits>
#include <map>
#include <random>
#include <vector>

#include "strata/error.h"
#include "unit/batch_case.h"

namespace strata {
namespace {

using oracle::group_spec;

const BatchLimits kLimits{.max_num_batched_tokens = 96, .max_num_seqs = 5, .max_model_len = 700};

int64_t pages(const CacheGroupSpec& spec, const BatchLimits& limits, int64_t cached_positions = 0) {
  const std::vector<CacheGroupSpec> layer{spec};
  return plan_pages({&layer, 1}, limits, cached_positions).at(spec.group);
}

TEST(PlanPages, Counts) {
  const CacheGroupSpec full = group_spec(CacheGroup::c4_compressed, 64, 4, 0), window = group_spec(CacheGroup::window, 64, 1, 128);
  EXPECT_EQ(pages(full, kLimits), 5 * 3) << "three pages of 256 positions hold 700";
  EXPECT_EQ(pages(full, kLimits, 256), 5) << "1 and 251 more positions, each on a page of its own, are the worst";
  EXPECT_EQ(pages(full, kLimits, 1 << 20), 5 * 3) << "never more than every request's longest";
  // A window of 128 positions and one new token are on three pages at most, and every 64 further tokens on one more.
  EXPECT_EQ(pages(window, {.max_num_batched_tokens = 1, .max_num_seqs = 1, .max_model_len = 700}), 3);
  EXPECT_EQ(pages(window, {.max_num_batched_tokens = 65, .max_num_seqs = 1, .max_model_len = 700}), 4);
  EXPECT_EQ(pages(window, {.max_num_batched_tokens = 1000, .max_num_seqs = 1, .max_model_len = 700}), 11) << "all of the request";
}

TEST(PlanPages, EveryGroupOfTheLayersOnce) {
  const std::vector<std::vector<CacheGroupSpec>> layers{{group_spec(CacheGroup::window, 64, 1, 128)}, oracle::v4_groups(), {}};
  const auto planned = plan_pages(layers, kLimits);
  EXPECT_EQ(planned.size(), oracle::v4_groups().size());
  EXPECT_TRUE(plan_pages({}, kLimits).empty());
}

TEST(PlanPages, RefusesWhatCannotBe) {
  const CacheGroupSpec window = group_spec(CacheGroup::window, 64, 1, 128);
  EXPECT_THROW(pages(window, {}), Error);
  EXPECT_THROW(pages(window, kLimits, -1), Error);
  EXPECT_THROW(pages(group_spec(CacheGroup::window, 0, 1, 128), kLimits), Error);
  const int32_t most = std::numeric_limits<int32_t>::max();
  const BatchLimits largest{.max_num_batched_tokens = most, .max_num_seqs = most, .max_model_len = most};
  EXPECT_EQ(pages(group_spec(CacheGroup::mla_latent, 1, 1, 0), largest, std::numeric_limits<int64_t>::max()), int64_t{most} * most);
}

// Random steps of requests that come and go, pause, and are given any part of the step's tokens.
TEST(PlanPages, NoScheduleIsRefused) {
  const std::vector<std::vector<CacheGroupSpec>> layers{oracle::v4_groups(), {group_spec(CacheGroup::mla_latent, 61, 1, 0)}};
  constexpr int64_t kCached = 1500;
  PagedPool pool(oracle::one_thread(), layers, plan_pages(layers, kLimits, kCached));
  std::mt19937 random(11);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
  std::map<int64_t, int64_t> computed;
  std::map<CacheGroup, int64_t> fewest_free;
  for (const auto& spec : pool.groups()) fewest_free[spec.group] = pool.free_pages(spec.group);
  int64_t next_id = 0;
  for (int step = 0; step < 20000; ++step) {
    while (std::ssize(computed) < kLimits.max_num_seqs) {
      pool.add_request(next_id);
      computed[next_id++] = 0;
    }
    int64_t left = kLimits.max_num_batched_tokens, cached = 0;
    for (const auto& [id, n] : computed) {
      ASSERT_TRUE(pool.extend(id, n, n));
      cached += n;
    }
    for (auto it = computed.begin(); it != computed.end();) {
      auto& [id, n] = *it;
      const int64_t wanted = below(3) == 0 ? left : below(4);
      const int64_t tokens = std::min({wanted, left, kLimits.max_model_len - n, kCached - cached});
      ASSERT_TRUE(pool.extend(id, n, n + tokens)) << "step " << step;
      n += tokens, left -= tokens, cached += tokens;
      const bool ends = n == kLimits.max_model_len || below(200) == 0 || (cached == kCached && it == computed.begin());
      if (ends) {
        cached -= n;
        pool.remove_request(id);
      }
      it = ends ? computed.erase(it) : std::next(it);
    }
    for (auto& [group, fewest] : fewest_free) fewest = std::min(fewest, pool.free_pages(group));
  }
  // Not far from the least there can be: within two pages a request.
  for (const auto& [group, fewest] : fewest_free) EXPECT_LE(fewest, 2 * kLimits.max_num_seqs) << to_string(group);
}

}  // namespace
}  // namespace strata
