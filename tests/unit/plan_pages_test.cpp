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

// Random steps of requests that come and go, pause, and get any share of the step's tokens.
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
      pool.mark_computed(id, n);
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

int64_t bytes_of(const std::vector<std::vector<CacheGroupSpec>>& layers, const std::map<CacheGroup, int64_t>& pages) {
  int64_t bytes = 0;
  for (const auto& of_layer : layers) {
    for (const CacheGroupSpec& spec : of_layer) bytes += spec.page_bytes * pages.at(spec.group);
  }
  return bytes;
}

// Every budget: the plan fits, the next larger one does not, and a pool of these pages has the bytes that the plan says.
TEST(PlanPagesWithin, TheMostThatFits) {
  const std::vector<std::vector<CacheGroupSpec>> layers{oracle::v4_groups(), {oracle::v4_groups().front()}, oracle::v4_groups()};
  const int64_t most = kLimits.max_num_seqs * kLimits.max_model_len;
  const int64_t least_bytes = bytes_of(layers, plan_pages(layers, kLimits, 1)), most_bytes = bytes_of(layers, plan_pages(layers, kLimits));
  ASSERT_LT(least_bytes, most_bytes);
  int64_t last = 0;
  for (int64_t bytes = least_bytes; bytes < most_bytes + 20000; bytes += 9973) {
    const PagePlan plan = plan_pages_within(bytes, layers, kLimits);
    EXPECT_EQ(plan.pages, plan_pages(layers, kLimits, plan.cached_positions));
    EXPECT_EQ(plan.bytes, bytes_of(layers, plan.pages));
    EXPECT_LE(plan.bytes, bytes);
    EXPECT_GE(plan.cached_positions, std::max<int64_t>(last, 1));
    last = plan.cached_positions;
    if (plan.cached_positions < most) {
      EXPECT_GT(bytes_of(layers, plan_pages(layers, kLimits, plan.cached_positions + 1)), bytes);
    }
    EXPECT_EQ(PagedPool(oracle::one_thread(), layers, plan.pages).allocated_bytes(), plan.bytes);
  }
  EXPECT_EQ(last, most) << "no more positions than the limits have";
  EXPECT_EQ(plan_pages_within(std::numeric_limits<int64_t>::max(), layers, kLimits).cached_positions, most);
}

TEST(PlanPagesWithin, RefusesWhatCannotBe) {
  const std::vector<std::vector<CacheGroupSpec>> layers{oracle::v4_groups()};
  const int64_t least = bytes_of(layers, plan_pages(layers, kLimits, 1));
  EXPECT_EQ(plan_pages_within(least, layers, kLimits).bytes, least);
  for (const int64_t bytes : {least - 1, int64_t{0}, int64_t{-1}}) {
    try {
      static_cast<void>(plan_pages_within(bytes, layers, kLimits));
      ADD_FAILURE() << bytes;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(std::string(e.what()), "plan_pages_within: bytes must be at least " + std::to_string(least) +
                                           ", the pages of one position within the limits, are " + std::to_string(bytes));
    }
  }
  EXPECT_THROW(static_cast<void>(plan_pages_within(1 << 20, layers, {})), Error);
  CacheGroupSpec none = oracle::v4_groups().front();
  none.page_bytes = 0;
  const std::vector<std::vector<CacheGroupSpec>> without_bytes{{none}};
  EXPECT_THROW(static_cast<void>(plan_pages_within(1 << 20, without_bytes, kLimits)), Error);
  // Pages whose bytes fit no 63 bits are more than any budget.
  const int32_t huge = std::numeric_limits<int32_t>::max();
  const std::vector<std::vector<CacheGroupSpec>> latent{{group_spec(CacheGroup::mla_latent, 1, 1, 0)}};
  const BatchLimits largest{.max_num_batched_tokens = huge, .max_num_seqs = huge, .max_model_len = huge};
  const PagePlan plan = plan_pages_within(std::numeric_limits<int64_t>::max(), latent, largest);
  EXPECT_EQ(plan.bytes, plan.pages.at(CacheGroup::mla_latent) * 16);
  EXPECT_GT(plan.bytes, std::numeric_limits<int64_t>::max() - 16);
}

// What a prefix takes is counted once: requests that share one are admitted by the positions that they have of their own.
TEST(PlanPages, SharedPositionsCountOnce) {
  const std::vector<std::vector<CacheGroupSpec>> layers{oracle::v4_groups()};
  constexpr int64_t kCached = 1500;
  PagedPool pool(oracle::one_thread(), layers, plan_pages(layers, kLimits, kCached));
  std::mt19937 random(12);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
  struct Request {
    int64_t computed = 0, shared = 0;  // positions; shared: of them another request's, which stays longer
  };
  pool.add_request(0);  // keeps the prefix
  for (int64_t n = 0; n < 512; n += 32) {
    ASSERT_TRUE(pool.extend(0, n, n + 32));
    pool.mark_computed(0, n + 32);
  }
  std::map<int64_t, Request> requests;
  int64_t next_id = 1;
  int sharing = 0;
  for (int step = 0; step < 5000; ++step) {
    while (std::ssize(requests) < kLimits.max_num_seqs - 1) {
      const bool shares = below(2) == 0;
      if (shares) {
        pool.add_request(next_id, {.request = 0, .positions = 512});
      } else {
        pool.add_request(next_id);
      }
      sharing += shares;
      requests[next_id++] = shares ? Request{512, 512} : Request{};
    }
    int64_t left = kLimits.max_num_batched_tokens, cached = 512;
    for (const auto& [id, r] : requests) {
      pool.mark_computed(id, r.computed);
      cached += r.computed - r.shared;
    }
    for (auto it = requests.begin(); it != requests.end();) {
      auto& [id, r] = *it;
      const int64_t tokens = std::min({below(3) == 0 ? left : below(4), left, kLimits.max_model_len - r.computed, kCached - cached});
      ASSERT_TRUE(pool.extend(id, r.computed, r.computed + tokens)) << "step " << step;
      r.computed += tokens, left -= tokens, cached += tokens;
      const bool ends = r.computed == kLimits.max_model_len || below(100) == 0 || (cached == kCached && it == requests.begin());
      if (ends) {
        cached -= r.computed - r.shared;
        pool.remove_request(id);
      }
      it = ends ? requests.erase(it) : std::next(it);
    }
  }
  EXPECT_GT(sharing, 100);
}

}  // namespace
}  // namespace strata
