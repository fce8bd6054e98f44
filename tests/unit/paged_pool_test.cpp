#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>

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

PagedPool pool_of(std::vector<std::vector<CacheGroupSpec>> layers, const std::map<CacheGroup, int64_t>& pages,
                  std::optional<uint8_t> fill = {}) {
  return {oracle::one_thread(), std::move(layers), pages, fill};
}

TEST(PagedPool, StorageOfEveryLayer) {
  CacheGroupSpec padded = kState;
  padded.page_bytes = 100;
  PagedPool pool = pool_of({{kWindow}, {kWindow, kCompressed, padded}, {}},
                           {{CacheGroup::window, 5}, {CacheGroup::c4_compressed, 3}, {CacheGroup::c4_state, 7}});
  EXPECT_EQ(pool.groups().size(), 3u);
  EXPECT_EQ(pool.allocated_bytes(), 2 * 5 * 1024 + 3 * 1024 + 7 * 100);
  const PagedCache& window = pool.layer(1)[CacheGroup::window];
  EXPECT_EQ(window.num_pages, 5);
  EXPECT_EQ(window.page_size, 64);
  EXPECT_EQ(window.page_stride, 1024);
  EXPECT_EQ(window.row_dim, 16);
  EXPECT_NE(window.data, nullptr);
  EXPECT_NE(window.data, pool.layer(0)[CacheGroup::window].data);
  EXPECT_EQ(pool.layer(1)[CacheGroup::c4_state].page_stride, 100);
  EXPECT_FALSE(pool.layer(0)[CacheGroup::c4_compressed].present());
  EXPECT_FALSE(pool.layer(2)[CacheGroup::window].present());
}

TEST(PagedPool, SlidingGroupsReleaseWhatIsTooOld) {
  PagedPool pool =
      pool_of({{kWindow, kCompressed, kState}}, {{CacheGroup::window, 10}, {CacheGroup::c4_compressed, 10}, {CacheGroup::c4_state, 200}});
  pool.add_request(7);
  ASSERT_TRUE(pool.extend(7, 0, 200));
  EXPECT_THAT(pool.block_table(7, CacheGroup::window), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(pool.block_table(7, CacheGroup::c4_state).size(), 50u);
  ASSERT_TRUE(pool.extend(7, 191, 201));  // keeps 63 ...: block 0 still has position 63
  EXPECT_THAT(pool.block_table(7, CacheGroup::window), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(pool.free_pages(CacheGroup::window), 6);  // a released entry is 0, as that of page 0 is
  ASSERT_TRUE(pool.extend(7, 192, 257));              // keeps 64 ...: page 0 is free, and taken again at once
  EXPECT_THAT(pool.block_table(7, CacheGroup::window), ElementsAre(0, 1, 2, 3, 0));
  EXPECT_EQ(pool.free_pages(CacheGroup::window), 6);
  EXPECT_THAT(pool.block_table(7, CacheGroup::c4_compressed), ElementsAre(0, 1));
  // The state keeps positions 184 ...: block 46.
  const auto state = pool.block_table(7, CacheGroup::c4_state);
  ASSERT_EQ(state.size(), 65u);
  EXPECT_EQ(std::count(state.begin(), state.begin() + 46, 0), 46);
  EXPECT_EQ(pool.free_pages(CacheGroup::c4_state), 200 - (65 - 46));
  pool.remove_request(7);
  EXPECT_EQ(pool.free_pages(CacheGroup::window), 10);
  EXPECT_EQ(pool.free_pages(CacheGroup::c4_compressed), 10);
  EXPECT_EQ(pool.free_pages(CacheGroup::c4_state), 200);
}

TEST(PagedPool, LiveSlidingPagesAreBounded) {
  PagedPool pool = pool_of({{kWindow, kState}}, {{CacheGroup::window, 4}, {CacheGroup::c4_state, 4}});
  pool.add_request(1);
  for (int64_t p = 0; p < 5000; ++p) ASSERT_TRUE(pool.extend(1, p, p + 1)) << p;  // ceil((retained + 1) / span) + 1 pages do
}

TEST(PagedPool, AllOrNothing) {
  PagedPool pool =
      pool_of({{kWindow, kCompressed, kState}}, {{CacheGroup::window, 100}, {CacheGroup::c4_compressed, 2}, {CacheGroup::c4_state, 40}});
  pool.add_request(1);
  pool.add_request(2);
  ASSERT_TRUE(pool.extend(1, 0, 100));
  ASSERT_TRUE(pool.extend(2, 0, 40));
  const auto snapshot = [&] {
    std::vector<int64_t> all;
    for (int64_t id : {1, 2}) {
      for (const CacheGroupSpec& spec : pool.groups()) {
        const auto table = pool.block_table(id, spec.group);
        all.insert(all.end(), table.begin(), table.end());
        all.push_back(-1);
      }
    }
    for (const CacheGroupSpec& spec : pool.groups()) all.push_back(pool.free_pages(spec.group));
    return all;
  };
  const auto before = snapshot();
  EXPECT_FALSE(pool.extend(1, 100, 300));  // compressed pages are missing, and so are state pages
  EXPECT_EQ(snapshot(), before);
  EXPECT_FALSE(pool.extend(2, 0, 70));  // only state pages are missing, and none is released
  EXPECT_EQ(snapshot(), before);
  EXPECT_FALSE(pool.extend(1, 100, INT32_MAX));
  EXPECT_EQ(snapshot(), before);
  EXPECT_TRUE(pool.extend(2, 40, 70));  // what request 2 itself releases is enough
  pool.remove_request(1);
  EXPECT_TRUE(pool.extend(2, 70, 200));
}

// Draft tokens that were rejected: the next step starts before the end of the last one.
TEST(PagedPool, GoingBack) {
  PagedPool pool = pool_of({{kWindow, kState}}, {{CacheGroup::window, 10}, {CacheGroup::c4_state, 200}});
  pool.add_request(1);
  ASSERT_TRUE(pool.extend(1, 0, 300));
  ASSERT_TRUE(pool.extend(1, 300, 304));
  const std::vector<int32_t> before = pool.block_table(1, CacheGroup::window);
  ASSERT_TRUE(pool.extend(1, 301, 305));
  ASSERT_TRUE(pool.extend(1, 300, 301));
  EXPECT_THAT(pool.block_table(1, CacheGroup::window), testing::ElementsAreArray(before));
  EXPECT_THAT(error_of([&] { static_cast<void>(pool.extend(1, 200, 201)); }),
              HasSubstr("window pages before position 128 were released, position 200 needs block 1"));
}

// A request that starts after a prefix computed elsewhere gets pages from its window on.
TEST(PagedPool, StartingLate) {
  PagedPool pool = pool_of({{kWindow, kState}}, {{CacheGroup::window, 3}, {CacheGroup::c4_state, 4}});
  pool.add_request(1);
  ASSERT_TRUE(pool.extend(1, 1000, 1001));  // keeps 872 ...: block 13
  const auto table = pool.block_table(1, CacheGroup::window);
  ASSERT_EQ(table.size(), 16u);
  EXPECT_EQ(std::count(table.begin(), table.begin() + 13, 0), 13);
  EXPECT_THAT(std::vector<int32_t>(table.begin() + 13, table.end()), ElementsAre(0, 1, 2));
  EXPECT_EQ(pool.free_pages(CacheGroup::window), 0);
  pool.remove_request(1);
  EXPECT_EQ(pool.free_pages(CacheGroup::window), 3);
}

TEST(PagedPool, FillMarksWhatNobodyWrote) {
  PagedPool pool = pool_of({{kState}, {kState}}, {{CacheGroup::c4_state, 3}}, 0xFF);
  const auto byte = [&](int64_t layer, int64_t page) {
    const PagedCache& cache = pool.layer(layer)[CacheGroup::c4_state];
    return static_cast<uint8_t*>(cache.data)[page * cache.page_stride + cache.page_stride - 1];
  };
  for (int64_t l = 0; l < 2; ++l) {
    for (int64_t page = 0; page < 3; ++page) EXPECT_EQ(byte(l, page), 0xFF);
    std::memset(pool.layer(l)[CacheGroup::c4_state].data, 1, static_cast<size_t>(pool.allocated_bytes() / 2));
  }
  pool.add_request(1);
  ASSERT_TRUE(pool.extend(1, 0, 8));
  EXPECT_EQ(byte(0, 0), 1);
  ASSERT_TRUE(pool.extend(1, 12, 13));  // block 0 is gone
  EXPECT_EQ(byte(0, 0), 0xFF);
  EXPECT_EQ(byte(1, 0), 0xFF);
  EXPECT_EQ(byte(0, 1), 1);
  pool.remove_request(1);
  EXPECT_EQ(byte(1, 1), 0xFF);
}

TEST(PagedPool, RefusesWhatCannotBe) {
  const std::map<CacheGroup, int64_t> pages = {{CacheGroup::window, 2}, {CacheGroup::c4_state, 2}};
  const auto construct = [&](std::vector<std::vector<CacheGroupSpec>> layers) { return error_of([&] { pool_of(layers, pages); }); };
  EXPECT_EQ(construct({{kWindow}}), "");
  EXPECT_THAT(error_of([&] { pool_of({{kWindow}, {}}, pages).layer(2); }), HasSubstr("layer must be in [0, 2), is 2"));
  EXPECT_THAT(construct({{kCompressed}}), HasSubstr("a number of pages is required for group c4_compressed"));
  EXPECT_THAT(construct({{kWindow, kWindow}}), HasSubstr("layer 0 must name group window once"));
  CacheGroupSpec other = kWindow;
  other.page_size = 32;
  EXPECT_THAT(construct({{kWindow}, {other}}), HasSubstr("group window must have the same spec in all layers, differs in layer 1"));
  other = kWindow;
  other.page_bytes = 1023;
  EXPECT_THAT(construct({{other}}), HasSubstr("window.page_bytes must be at least 1024 for 64 rows of fp8_tensor, is 1023"));
  other = kWindow;
  other.row_dim = 0;
  EXPECT_THAT(construct({{other}}), HasSubstr("window.row_dim must be positive"));
  other = kState;
  other.retained = 4;
  EXPECT_THAT(construct({{other}}), HasSubstr("c4_state.retained must be 0 or at least 8, is 4"));
  EXPECT_THAT(error_of([&] { PagedPool(nullptr, {{kWindow}}, pages); }), HasSubstr("device is required"));
  EXPECT_THAT(error_of([&] { pool_of({{kWindow}}, {{CacheGroup::window, -1}}); }), HasSubstr("num_pages must be in [0, 2^31), is -1"));

  PagedPool pool = pool_of({{kWindow}}, pages);
  pool.add_request(3);
  EXPECT_THAT(error_of([&] { pool.add_request(3); }), HasSubstr("request ids must be new, 3 is known"));
  EXPECT_THAT(error_of([&] { static_cast<void>(pool.extend(4, 0, 1)); }), HasSubstr("request 4 is not known"));
  EXPECT_THAT(error_of([&] { pool.remove_request(4); }), HasSubstr("request 4 is not known"));
  EXPECT_THAT(error_of([&] { static_cast<void>(pool.block_table(4, CacheGroup::window)); }), HasSubstr("request 4 is not known"));
  EXPECT_THAT(error_of([&] { static_cast<void>(pool.block_table(3, CacheGroup::c4_state)); }), HasSubstr("it has no group c4_state"));
  EXPECT_THAT(error_of([&] { static_cast<void>(pool.free_pages(CacheGroup::c4_state)); }), HasSubstr("it has no group c4_state"));
  EXPECT_THAT(error_of([&] { static_cast<void>(pool.extend(3, 2, 1)); }),
              HasSubstr("first_new_position must be in [0, seq_len = 1], is 2"));
  EXPECT_THAT(error_of([&] { static_cast<void>(pool.extend(3, -1, 1)); }), HasSubstr("is -1"));
  EXPECT_THAT(error_of([&] { static_cast<void>(pool.extend(3, 0, int64_t{1} << 31)); }), HasSubstr("seq_len must be below 2^31"));
}

// The first eight bytes of a row say whose it is.
struct Mark {
  int32_t request = -1;
  int32_t position = -1;
  friend bool operator==(const Mark&, const Mark&) = default;
};

// Runs requests of very different lengths through a small pool and a batch builder, writes a mark through every slot mapping and reads
// marks back through everything that the layers read through. Released pages are overwritten, so whoever addresses one finds no mark.
class Recycling : public testing::Test {
 protected:
  static constexpr int64_t kRequests = 5;
  const BatchLimits limits_{.max_num_batched_tokens = 300, .max_num_seqs = kRequests, .max_model_len = 3000, .num_speculative_tokens = 3};

  Mark& mark(const PagedCache& cache, int64_t slot) {
    EXPECT_GE(slot, 0);
    EXPECT_LT(slot, cache.num_slots());
    return *reinterpret_cast<Mark*>(static_cast<char*>(cache.data) + cache.data_offset(slot));
  }

  void write_marks(const Batch& b, const PagedPool& pool, const std::vector<int64_t>& ids) {
    for (const CacheGroupSpec& spec : pool.groups()) {
      for (int64_t t = 0; t < b.num_tokens; ++t) {
        const int64_t slot = b[spec.group].slot_mapping.ptr<int64_t>()[t];
        if (slot < 0) continue;
        const auto id = static_cast<int32_t>(ids[static_cast<size_t>(b.token_to_req.ptr<int32_t>()[t])]);
        mark(pool.layer(0)[spec.group], slot) = {id, static_cast<int32_t>(b.positions.ptr<int64_t>()[t] / spec.ratio)};
      }
    }
  }

  // Rows [first, end) through the device's block table, as gathers and compressors read.
  void check_rows(const Batch& b, const PagedPool& pool, CacheGroup group, int64_t request, int64_t id, int64_t first, int64_t end) {
    const PagedCache& cache = pool.layer(0)[group];
    for (int64_t row = std::max<int64_t>(first, 0); row < end; ++row) {
      const int64_t page = b[group].block_table.row<int32_t>(request)[row / cache.page_size];
      const Mark expected{static_cast<int32_t>(id), static_cast<int32_t>(row)};
      ASSERT_EQ(mark(cache, page * cache.page_size + row % cache.page_size), expected)
          << to_string(group) << " of request " << id << ", row " << row;
    }
  }

  void check_tokens(const Batch& b, const PagedPool& pool, const std::vector<int64_t>& ids) {
    for (int64_t t = 0; t < b.num_actual_tokens; ++t) {
      const int64_t request = b.token_to_req.ptr<int32_t>()[t];
      const int64_t id = ids[static_cast<size_t>(request)];
      const int64_t p = b.positions.ptr<int64_t>()[t];
      const int32_t swa_len = b.swa_lens.ptr<int32_t>()[t];
      for (int32_t i = 0; i < swa_len; ++i) {
        const Mark expected{static_cast<int32_t>(id), static_cast<int32_t>(p + 1 - swa_len + i)};
        ASSERT_EQ(mark(pool.layer(0)[CacheGroup::window], b.swa_indices.row<int32_t>(t)[i]), expected);
      }
      for (int32_t i = 0; i < b.c128_lens.ptr<int32_t>()[t]; ++i) {
        const Mark expected{static_cast<int32_t>(id), i};
        ASSERT_EQ(mark(pool.layer(0)[CacheGroup::c128_compressed], b.c128_slots.row<int32_t>(t)[i]), expected);
      }
      if ((p + 1) % 4 == 0) {
        check_rows(b, pool, CacheGroup::c4_state, request, id, p - 7, p + 1);
        check_rows(b, pool, CacheGroup::c4_indexer_state, request, id, p - 7, p + 1);
      }
      if ((p + 1) % 128 == 0) check_rows(b, pool, CacheGroup::c128_state, request, id, p - 127, p + 1);
    }
    for (size_t r = 0; r < ids.size(); ++r) {
      const auto request = static_cast<int64_t>(r);
      const int64_t seq_len = b.seq_lens_host[r];
      check_rows(b, pool, CacheGroup::window, request, ids[r], seq_len - b.gather_lens.ptr<int32_t>()[r], seq_len);
      check_rows(b, pool, CacheGroup::c4_compressed, request, ids[r], 0, b.c4_seq_lens.ptr<int32_t>()[r]);
      check_rows(b, pool, CacheGroup::c4_indexer, request, ids[r], 0, b.c4_seq_lens.ptr<int32_t>()[r]);
    }
  }
};

TEST_F(Recycling, NoStepAddressesAReleasedPage) {
  const std::vector<CacheGroupSpec> groups = oracle::v4_groups();
  std::map<CacheGroup, int64_t> pages;
  for (const CacheGroupSpec& spec : groups) {
    // Full groups: half of what the requests could want. Sliding groups: their windows and one long prefill.
    pages[spec.group] = spec.retained == 0 ? kRequests * spec.pages_for(limits_.max_model_len) / 2
                                           : kRequests * (spec.pages_for(spec.retained) + 2) + spec.pages_for(200);
  }
  PagedPool pool = pool_of({groups}, pages, 0xFF);
  BatchBuilder builder(oracle::one_thread(), default_ops(), limits_, pool, 128);
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };

  std::map<int64_t, int64_t> computed;  // request -> tokens that are computed
  int64_t next_id = 0;
  int refused = 0, finished = 0, rolled_back = 0;
  for (int step = 0; step < 700; ++step) {
    while (std::ssize(computed) < kRequests) {
      pool.add_request(next_id);
      computed[next_id++] = 0;
    }
    std::vector<int64_t> ids;
    std::vector<BatchRequest> requests;
    int64_t tokens_left = limits_.max_num_batched_tokens;
    for (const auto& [id, done] : computed) {
      int64_t query_len = below(12) == 0 ? below(200) : below(5);
      query_len = std::min({query_len, tokens_left, limits_.max_model_len - done});
      if (!pool.extend(id, done, done + query_len)) {
        ++refused;
        continue;
      }
      tokens_left -= query_len;
      ids.push_back(id);
      requests.push_back({.seq_len = done + query_len, .query_len = query_len});
    }
    std::vector<BatchRequest> ordered;
    std::vector<int64_t> ordered_ids;
    for (int64_t i : decode_first_order(requests, limits_.num_speculative_tokens)) {
      ordered.push_back(requests[static_cast<size_t>(i)]);
      ordered_ids.push_back(ids[static_cast<size_t>(i)]);
      ordered.back().block_tables = pool.block_tables(ordered_ids.back());
    }
    const Batch& b = builder.build(ordered);
    write_marks(b, pool, ordered_ids);
    ASSERT_NO_FATAL_FAILURE(check_tokens(b, pool, ordered_ids)) << "step " << step;
    for (size_t r = 0; r < ordered.size(); ++r) {
      // Some draft tokens are rejected: their positions come again.
      const int64_t rejected =
          ordered[r].query_len > 1 && ordered[r].query_len <= 4 && below(2) == 0 ? 1 + below(ordered[r].query_len - 1) : 0;
      rolled_back += rejected > 0;
      computed[ordered_ids[r]] = ordered[r].seq_len - rejected;
    }
    // A request ends at its limit, now and then, or to make room.
    for (auto it = computed.begin(); it != computed.end();) {
      const bool ends = it->second == limits_.max_model_len || below(150) == 0 || (ids.empty() && it == computed.begin());
      if (ends) pool.remove_request(it->first);
      finished += ends;
      it = ends ? computed.erase(it) : std::next(it);
    }
  }
  EXPECT_GT(finished, 10);
  EXPECT_GT(rolled_back, 100);
  EXPECT_GT(refused, 0);
  for (const auto& [id, done] : computed) pool.remove_request(id);
  for (const auto& [group, count] : pages) EXPECT_EQ(pool.free_pages(group), count) << to_string(group);
}

}  // namespace
}  // namespace strata
