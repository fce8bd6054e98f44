#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "strata/paged_pool.h"
#include "strata/error.h"

namespace strata {
namespace {

TEST(CacheGroup, Names) {
  std::set<std::string_view> names;
  for (size_t g = 0; g < kNumCacheGroups; ++g) names.insert(to_string(static_cast<CacheGroup>(g)));
  EXPECT_EQ(std::ssize(names), kNumCacheGroups);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(to_string(CacheGroup::window), "window");
  EXPECT_EQ(to_string(CacheGroup::mla_indexer), "mla_indexer");
  EXPECT_EQ(to_string(static_cast<CacheGroup>(kNumCacheGroups)), "unknown");
}

TEST(PagePool, HandsOutTheLowestFreePage) {
  PagePool pool(4);
  for (int32_t page : {0, 1, 2, 3}) EXPECT_EQ(pool.allocate(), page);
  EXPECT_EQ(pool.allocate(), -1);
  EXPECT_EQ(pool.num_free(), 0);
  for (int32_t page : {3, 1, 2}) pool.release(page);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), 3);
  EXPECT_EQ(pool.allocate(), -1);
}

TEST(PagePool, AgreesWithASet) {
  constexpr int32_t kPages = 37;
  PagePool pool(kPages);
  std::set<int32_t> free, used;
  for (int32_t i = 0; i < kPages; ++i) free.insert(i);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0) {
      const int32_t expected = free.empty() ? -1 : *free.begin();
      ASSERT_EQ(pool.allocate(), expected);
      if (expected >= 0) used.insert(free.extract(expected));
    } else if (!used.empty()) {
      const int32_t page = *std::next(used.begin(), static_cast<int64_t>(random() % used.size()));
      pool.release(page);
      free.insert(used.extract(page));
    }
    ASSERT_EQ(pool.num_free(), std::ssize(free));
  }
}

TEST(PagePool, APageIsFreeWhenItsLastHolderReleasedIt) {
  PagePool pool(2);
  const int32_t page = pool.allocate();
  EXPECT_EQ(pool.holders(page), 1);
  pool.share(page);
  pool.share(page);
  EXPECT_EQ(pool.holders(page), 3);
  EXPECT_FALSE(pool.release(page));
  EXPECT_FALSE(pool.release(page));
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_TRUE(pool.release(page));
  EXPECT_EQ(pool.holders(page), 0);
  EXPECT_EQ(pool.allocate(), page);
  EXPECT_EQ(pool.holders(page), 1);
}

TEST(PagePool, RefusesWhatCannotBe) {
  PagePool empty(0);
  EXPECT_EQ(empty.allocate(), -1);
  EXPECT_THROW(empty.release(0), Error);
  EXPECT_THROW(PagePool(-1), Error);
  EXPECT_THROW(PagePool(int64_t{1} << 31), Error);
  PagePool pool(2);
  EXPECT_THROW(pool.release(0), Error);
  const int32_t page = pool.allocate();
  EXPECT_THROW(pool.release(-1), Error);
  EXPECT_THROW(pool.release(2), Error);
  pool.release(page);
  EXPECT_THROW(pool.release(page), Error);
  EXPECT_THROW(pool.share(page), Error);
  EXPECT_THROW(pool.share(2), Error);
  EXPECT_THROW(static_cast<void>(pool.holders(-1)), Error);
  EXPECT_EQ(pool.num_free(), 2);
}

}  // namespace
}  // namespace strata
