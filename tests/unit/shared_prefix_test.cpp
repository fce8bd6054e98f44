// Requests of a PagedPool that share a prefix: what may be shared, when pages are free, and that nobody reads or writes another's rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "strata/error.h"
#include "unit/batch_case.h"
#include "unit/pool_test.h"

namespace strata {
namespace {

using oracle::error_of;
using oracle::group_spec;
using oracle::kCompressed;
using oracle::kState;
using oracle::kWindow;
using testing::ElementsAre;
using testing::HasSubstr;

PagedPool pool_of(const std::vector<CacheGroupSpec>& groups, const std::map<CacheGroup, int64_t>& pages, std::optional<uint8_t> fill = {}) {
  return {oracle::one_thread(), {groups}, pages, fill};
}
PagedPool v4_pool(int64_t pages) {
  std::map<CacheGroup, int64_t> counts;
  for (const CacheGroupSpec& spec : oracle::v4_groups()) counts[spec.group] = pages;
  return pool_of(oracle::v4_groups(), counts);
}
int64_t free_pages(const PagedPool& pool) {
  int64_t pages = 0;
  for (const CacheGroupSpec& spec : pool.groups()) pages += pool.free_pages(spec.group);
  return pages;
}

TEST(SharedPrefix, GranularityIsAWholePageOfEveryGroup) {
  EXPECT_EQ(v4_pool(1).prefix_granularity(), 256);
  const CacheGroupSpec latent = group_spec(CacheGroup::mla_latent, 64, 1, 0), keys = group_spec(CacheGroup::mla_indexer, 64, 1, 0);
  EXPECT_EQ(pool_of({latent, keys}, {{CacheGroup::mla_latent, 1}, {CacheGroup::mla_indexer, 1}}).prefix_granularity(), 64);
  CacheGroupSpec odd = latent;
  odd.page_size = 61;
  odd.page_bytes = 61 * 16;
  EXPECT_EQ(pool_of({odd, keys}, {{CacheGroup::mla_latent, 1}, {CacheGroup::mla_indexer, 1}}).prefix_granularity(), 61 * 64);
  EXPECT_EQ(PagedPool(oracle::one_thread(), {}, {}).prefix_granularity(), 1);
  // Page sizes whose least common multiple does not fit: no number of positions is whole pages of all.
  const auto huge = [](CacheGroup group, int32_t page_size) {
    CacheGroupSpec spec = group_spec(group, page_size, group == CacheGroup::c128_compressed ? 128 : group == CacheGroup::window ? 1 : 4, 0);
    return spec;
  };
  EXPECT_EQ(pool_of({huge(CacheGroup::window, 2147483647), huge(CacheGroup::c4_compressed, 2147483629),
                     huge(CacheGroup::c128_compressed, 2147483587)},
                    {{CacheGroup::window, 0}, {CacheGroup::c4_compressed, 0}, {CacheGroup::c128_compressed, 0}})
                .prefix_granularity(),
            INT64_MAX);
}

TEST(SharedPrefix, TakesTheTablesWithoutFreePages) {
  PagedPool pool =
      pool_of({kWindow, kCompressed, kState}, {{CacheGroup::window, 8}, {CacheGroup::c4_compressed, 2}, {CacheGroup::c4_state, 128}});
  pool.add_request(1);
  ASSERT_TRUE(pool.extend(1, 0, 512));
  pool.mark_computed(1, 512);
  EXPECT_EQ(pool.free_pages(CacheGroup::c4_compressed), 0);
  const int64_t window_pages = pool.free_pages(CacheGroup::window), before = free_pages(pool);
  pool.add_request(2, {.request = 1, .positions = 512});
  EXPECT_EQ(free_pages(pool), before);
  EXPECT_EQ(pool.block_table(2, CacheGroup::c4_compressed), pool.block_table(1, CacheGroup::c4_compressed));
  // The next token, of position 512, reads 385 ...: blocks 6 and 7 of the window, and 126 and 127 of the states, 505 ....
  EXPECT_EQ(pool.first_block(2, CacheGroup::window), 6);
  EXPECT_EQ(pool.first_block(2, CacheGroup::c4_state), 126);
  EXPECT_THAT(pool.block_table(2, CacheGroup::window), ElementsAre(0, 0, 0, 0, 0, 0, 6, 7));
  pool.remove_request(1);
  EXPECT_EQ(pool.free_pages(CacheGroup::window), window_pages);
  EXPECT_EQ(pool.free_pages(CacheGroup::c4_compressed), 0);
  pool.remove_request(2);
  EXPECT_EQ(pool.free_pages(CacheGroup::window), 8);
  EXPECT_EQ(pool.free_pages(CacheGroup::c4_compressed), 2);
  EXPECT_EQ(pool.free_pages(CacheGroup::c4_state), 128);
}

// A chain: each request shares what the one before it has, its own additions included. Every order of removal.
TEST(SharedPrefix, ChainsAndRemovalInAnyOrder) {
  std::vector<int64_t> order{1, 2, 3, 4};
  do {
    PagedPool pool = v4_pool(400);
    const int64_t all = free_pages(pool);
    pool.add_request(1);
    ASSERT_TRUE(pool.extend(1, 0, 256));
    pool.mark_computed(1, 256);
    for (int64_t id = 2; id <= 4; ++id) {
      pool.add_request(id, {.request = id - 1, .positions = 256 * (id - 1)});
      ASSERT_TRUE(pool.extend(id, 256 * (id - 1), 256 * id));
      pool.mark_computed(id, 256 * id);
    }
    const auto table = pool.block_table(4, CacheGroup::c4_compressed);
    EXPECT_THAT(table, ElementsAre(0, 1, 2, 3));
    for (const int64_t id : order) {
      pool.remove_request(id);
      // The first pages live as long as any request does; the last one belongs to request 4 alone.
      const bool last = id == order.back();
      EXPECT_EQ(free_pages(pool) == all, last);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(SharedPrefix, APrefixOutlivesItsRequests) {
  PagedPool pool = v4_pool(400);
  pool.add_request(1);
  ASSERT_TRUE(pool.extend(1, 0, 256));
  pool.mark_computed(1, 256);
  pool.add_request(-5, {.request = 1, .positions = 256});  // keeps it
  ASSERT_TRUE(pool.extend(1, 256, 600));
  pool.mark_computed(1, 600);
  EXPECT_THAT(error_of([&] { pool.add_request(2, {.request = 1, .positions = 256}); }),
              HasSubstr("request 2: request 1 must still have window block 2, which position 256 reads, has released those before 7"));
  pool.remove_request(1);
  pool.add_request(2, {.request = -5, .positions = 256});
  ASSERT_TRUE(pool.extend(2, 256, 600));
}

TEST(SharedPrefix, RefusesWhatCannotBe) {
  PagedPool pool = v4_pool(400);
  pool.add_request(1);
  ASSERT_TRUE(pool.extend(1, 0, 600));
  const auto share = [&](int64_t id, int64_t from, int64_t positions) {
    return error_of([&] { pool.add_request(id, {.request = from, .positions = positions}); });
  };
  EXPECT_THAT(share(2, 1, 256),
              HasSubstr("request 2: positions of a shared prefix must be at most the 0 that request 1 has computed, are 256"));
  pool.mark_computed(1, 257);
  const int64_t before = free_pages(pool);
  for (const int64_t positions : {int64_t{0}, int64_t{-256}, int64_t{255}, int64_t{64}, INT64_MAX}) {
    EXPECT_THAT(share(2, 1, positions), HasSubstr("request 2: positions of a shared prefix must be a positive multiple of 256"));
    EXPECT_THAT(share(2, 1, positions), HasSubstr("are " + std::to_string(positions)));
  }
  EXPECT_THAT(share(2, 1, 512), HasSubstr("at most the 257 that request 1 has computed, are 512"));
  EXPECT_THAT(share(1, 1, 256), HasSubstr("request ids must be new, 1 is known"));
  EXPECT_THAT(share(2, 7, 256), HasSubstr("request 7 is not known"));
  EXPECT_EQ(free_pages(pool), before);
  EXPECT_THAT(error_of([&] { pool.remove_request(2); }), HasSubstr("request 2 is not known")) << "a refused request is not added";
  EXPECT_EQ(share(2, 1, 256), "");
  EXPECT_THAT(error_of([&] { pool.mark_computed(2, 257); }),
              HasSubstr("request 2: window must have 5 pages for 257 computed positions, has 4"));
}

// A position that is computed anew writes its rows: not to pages that another request reads.
TEST(SharedPrefix, SharedPagesAreNotWritten) {
  PagedPool pool = v4_pool(400);
  pool.add_request(1);
  ASSERT_TRUE(pool.extend(1, 0, 258));  // the last two are drafts
  pool.mark_computed(1, 258);
  pool.add_request(2, {.request = 1, .positions = 256});
  for (const int64_t id : {1, 2}) {
    EXPECT_THAT(error_of([&] { static_cast<void>(pool.extend(id, 255, 256)); }),
                HasSubstr("first_new_position must be at least 256, as 2 requests share window block 3 before it, is 255"));
    EXPECT_TRUE(pool.extend(id, 255, 255)) << "nothing is written";
    EXPECT_TRUE(pool.extend(id, 256, 258));
  }
  pool.remove_request(2);
  EXPECT_TRUE(pool.extend(1, 255, 256)) << "nobody shares the page any more";
}

// Pages that another request has too are not freed by a window that moves on, so they do not count as room.
TEST(SharedPrefix, ExhaustionCountsWhatIsFreed) {
  PagedPool pool = pool_of({kWindow}, {{CacheGroup::window, 6}});
  pool.add_request(1);
  ASSERT_TRUE(pool.extend(1, 0, 256));  // pages 0 to 3
  pool.mark_computed(1, 256);           // keeps 2 and 3
  pool.add_request(2, {.request = 1, .positions = 256});
  ASSERT_TRUE(pool.extend(1, 256, 512));  // the four others
  EXPECT_EQ(pool.free_pages(CacheGroup::window), 0);
  EXPECT_FALSE(pool.extend(2, 256, 257));
  EXPECT_FALSE(pool.extend(1, 384, 513)) << "blocks 2 and 3 would go, which request 2 keeps";
  pool.mark_computed(1, 384);
  EXPECT_EQ(pool.free_pages(CacheGroup::window), 0);
  pool.remove_request(2);
  EXPECT_EQ(pool.free_pages(CacheGroup::window), 2);
  EXPECT_TRUE(pool.extend(1, 384, 513));
}

// Random requests that are added, share, grow, go back and end, against a model of texts: each position of a request has a random word, a
// request that shares a prefix has its words, and words are written to rows and read back through the tables. Freed pages are overwritten.
class RandomRequests : public testing::Test {
 protected:
  struct Request {
    std::vector<int32_t> words;  // of the positions that are computed
  };
  const std::vector<CacheGroupSpec> groups_{kWindow, kCompressed, kState};
  static constexpr int64_t kMost = 1100;

  int32_t& row(const PagedPool& pool, const CacheGroupSpec& spec, int64_t id, int64_t row) {
    const PagedCache& cache = pool.layer(0)[spec.group];
    const int64_t page = pool.block_tables(id)[spec.group][static_cast<size_t>(row / spec.page_size)];
    return *reinterpret_cast<int32_t*>(static_cast<char*>(cache.data) + cache.data_offset(page * spec.page_size + row % spec.page_size));
  }
  // Rows that positions [begin, end) complete: of a compressed group with the word of their last position.
  void write(const PagedPool& pool, int64_t id, const Request& r, int64_t begin) {
    for (const CacheGroupSpec& spec : groups_) {
      for (int64_t i = begin / spec.ratio; i < std::ssize(r.words) / spec.ratio; ++i) {
        row(pool, spec, id, i) = r.words[static_cast<size_t>((i + 1) * spec.ratio - 1)];
      }
    }
  }
  void read(const PagedPool& pool, int64_t id, const Request& r) {
    for (const CacheGroupSpec& spec : groups_) {
      const int64_t rows = std::ssize(r.words) / spec.ratio;
      for (int64_t i = spec.retained > 0 ? std::max<int64_t>(0, rows - spec.retained + 1) : 0; i < rows; ++i) {
        ASSERT_EQ(row(pool, spec, id, i), r.words[static_cast<size_t>((i + 1) * spec.ratio - 1)])
            << to_string(spec.group) << " of request " << id << ", row " << i;
      }
    }
  }
  // Every page that a table names is not free, and a page of two requests is the same block of both.
  void check_pages(const PagedPool& pool, const std::map<int64_t, Request>& requests) {
    for (const CacheGroupSpec& spec : groups_) {
      std::map<int32_t, int64_t> block_of;
      for (const auto& [id, r] : requests) {
        const std::vector<int32_t> table = pool.block_table(id, spec.group);
        for (int64_t b = pool.first_block(id, spec.group); b < std::ssize(table); ++b) {
          ASSERT_EQ(block_of.try_emplace(table[static_cast<size_t>(b)], b).first->second, b);
        }
      }
      const int64_t all = pool.layer(0)[spec.group].num_pages;
      ASSERT_EQ(pool.free_pages(spec.group), all - std::ssize(block_of)) << to_string(spec.group);
    }
  }
};

TEST_F(RandomRequests, AgreeWithTheirTexts) {
  PagedPool pool = pool_of(groups_, {{CacheGroup::window, 28}, {CacheGroup::c4_compressed, 10}, {CacheGroup::c4_state, 190}}, 0xFF);
  std::mt19937 random(5);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
  std::map<int64_t, Request> requests;
  int64_t next_id = 0;
  int shared = 0, not_shared = 0, refused = 0, went_back = 0, kept_from_writing = 0;
  const auto any = [&] { return std::next(requests.begin(), below(std::ssize(requests))); };
  for (int step = 0; step < 30000; ++step) {
    const int64_t action = requests.empty() ? 0 : below(20);
    if (action == 0 && std::ssize(requests) < 6) {
      pool.add_request(next_id);
      requests[next_id++];
    } else if (action <= 3 && std::ssize(requests) < 6) {
      const auto& [from, r] = *any();
      const int64_t positions = 256 * (1 + below(3));
      const bool allowed = positions <= std::ssize(r.words) && (positions - 127) / 64 >= pool.first_block(from, CacheGroup::window) &&
                           (positions - 7) / 4 >= pool.first_block(from, CacheGroup::c4_state);
      const int64_t before = free_pages(pool);
      if (allowed) {
        pool.add_request(next_id, {.request = from, .positions = positions});
        requests[next_id++] = {.words = {r.words.begin(), r.words.begin() + positions}};
        ++shared;
      } else {
        ASSERT_THROW(pool.add_request(next_id, {.request = from, .positions = positions}), Error);
        ++not_shared;
      }
      ASSERT_EQ(free_pages(pool), before);
    } else if (action <= 5) {
      const auto it = any();
      pool.remove_request(it->first);
      requests.erase(it);
    } else {
      auto& [id, r] = *any();
      int64_t begin = std::ssize(r.words);
      if (begin > 0 && below(4) == 0) begin -= 1 + below(std::min<int64_t>(begin, 3));  // rejected tokens
      const int64_t to_boundary = (begin / 256 + 1) * 256 - begin;
      const int64_t end = std::min(kMost, begin + (below(3) == 0 ? to_boundary : below(12)));
      bool extended = false;
      try {
        extended = pool.extend(id, begin, end);
        refused += !extended;
        went_back += extended && begin < std::ssize(r.words);
      } catch (const Error& e) {  // its window has moved on, or another request reads the page
        const bool shares = std::string(e.what()).find("requests share") != std::string::npos;
        ASSERT_TRUE(shares || begin < std::ssize(r.words)) << e.what();
        kept_from_writing += shares;
      }
      if (extended) {
        r.words.resize(static_cast<size_t>(begin));
        while (std::ssize(r.words) < end) r.words.push_back(static_cast<int32_t>(below(1 << 30)));
        write(pool, id, r, begin);
        pool.mark_computed(id, end);
      }
    }
    ASSERT_NO_FATAL_FAILURE(check_pages(pool, requests)) << "step " << step;
    if (step % 8 == 0) {
      for (const auto& [id, r] : requests) ASSERT_NO_FATAL_FAILURE(read(pool, id, r)) << "step " << step;
    }
  }
  EXPECT_GT(shared, 100);
  EXPECT_GT(not_shared, 100);
  EXPECT_GT(refused, 100);
  EXPECT_GT(went_back, 100);
  EXPECT_GT(kept_from_writing, 10);
  for (const auto& [id, r] : requests) pool.remove_request(id);
  EXPECT_EQ(free_pages(pool), 28 + 10 + 190);
}

}  // namespace
}  // namespace strata
