// Block tables of a pool's request that has changed are refused by name, never read; an engine's own are taken as they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/error.h"
#include "unit/batch_case.h"

namespace strata {
namespace {

using testing::HasSubstr;

const BatchLimits kLimits{.max_num_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 1024};

class OutdatedTables : public testing::Test {
 protected:
  OutdatedTables() {
    std::map<CacheGroup, int64_t> pages;
    for (const CacheGroupSpec& spec : groups_) pages[spec.group] = 300;
    pool_ = std::make_unique<PagedPool>(device_, std::vector<std::vector<CacheGroupSpec>>{groups_}, pages);
    builder_ = std::make_unique<BatchBuilder>(device_, default_ops(), kLimits, *pool_, 128);
    pool_->add_request(70);
    EXPECT_TRUE(pool_->extend(70, 0, 10));
  }
  BatchRequest request(int64_t seq_len, int64_t query_len) {
    return {.seq_len = seq_len, .query_len = query_len, .block_tables = pool_->block_tables(70)};
  }
  std::string error_of(std::vector<BatchRequest> requests) {
    try {
      static_cast<void>(builder_->build(requests));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "";
  }

  const std::vector<CacheGroupSpec> groups_ = oracle::v4_groups();
  std::shared_ptr<Device> device_ = oracle::one_thread();
  std::unique_ptr<PagedPool> pool_;
  std::unique_ptr<BatchBuilder> builder_;
};

TEST_F(OutdatedTables, AfterExtend) {
  BatchRequest r = request(10, 10);
  EXPECT_EQ(error_of({r}), "");
  EXPECT_EQ(error_of({r}), "") << "a build does not use them up";
  ASSERT_TRUE(pool_->extend(70, 10, 600));  // the vectors grow: their memory is another
  EXPECT_EQ(error_of({BatchRequest{}, r}),
            "batch: request 1 (id 70): block_tables must be those that the pool has of request 70 now, are of before it was extended (call "
            "PagedPool::block_tables after the last extend)");
  r.id = 3;  // the engine's name for it
  EXPECT_THAT(error_of({r}), HasSubstr("batch: request 0 (id 3): block_tables must be those that the pool has of request 70 now"));
  EXPECT_EQ(error_of({request(600, 2)}), "");
  r = request(600, 2);
  pool_->mark_computed(70, 600);  // takes pages away
  EXPECT_THAT(error_of({r}), HasSubstr("was extended"));
}

TEST_F(OutdatedTables, AfterARefusedExtendTheyAreGood) {
  const BatchRequest r = request(10, 10);
  EXPECT_FALSE(pool_->extend(70, 10, 100000));
  EXPECT_EQ(error_of({r}), "");
}

TEST_F(OutdatedTables, AfterRemoval) {
  const BatchRequest r = request(10, 10);
  pool_->remove_request(70);
  EXPECT_THAT(error_of({r}), HasSubstr("request 70 now, are of before it was removed"));
  pool_->add_request(70);  // another one of the same id
  ASSERT_TRUE(pool_->extend(70, 0, 10));
  EXPECT_THAT(error_of({r}), HasSubstr("was removed"));
  EXPECT_EQ(error_of({request(10, 10)}), "");
}

TEST_F(OutdatedTables, AfterThePool) {
  const BatchRequest r = request(10, 10);
  pool_.reset();
  EXPECT_THAT(error_of({r}), HasSubstr("was removed"));
}

TEST_F(OutdatedTables, NobodyElsesExtensionMatters) {
  const BatchRequest r = request(10, 10);
  pool_->add_request(71);
  ASSERT_TRUE(pool_->extend(71, 0, 300));
  pool_->remove_request(71);
  EXPECT_EQ(error_of({r}), "");
}

TEST_F(OutdatedTables, AnEnginesOwnAreTakenAsTheyAre) {
  std::array<std::vector<int32_t>, kNumCacheGroups> own;
  BatchRequest r{.seq_len = 10, .query_len = 10};
  for (const CacheGroupSpec& spec : groups_) {
    own[static_cast<size_t>(spec.group)] = pool_->block_table(70, spec.group);
    r.block_tables[spec.group] = own[static_cast<size_t>(spec.group)];
  }
  EXPECT_FALSE(r.block_tables.pool_request().has_value());
  pool_->remove_request(70);
  EXPECT_EQ(error_of({r}), "");
}

// Every error of a request has its id, the engine's before the pool's.
TEST_F(OutdatedTables, ErrorsNameTheRequest) {
  BatchRequest r = request(10, 11);
  EXPECT_THAT(error_of({r}), HasSubstr("batch: request 0 (id 70): seq_len must be at least query_len = 11, is 10"));
  r.id = 5;
  EXPECT_THAT(error_of({r}), HasSubstr("batch: request 0 (id 5): seq_len must be"));
  r = {.seq_len = 70, .query_len = 1, .id = 6};
  EXPECT_THAT(error_of({r}), HasSubstr("batch: request 0 (id 6): block_tables[window] must have at least 2 entries"));
  r.id = -1;
  EXPECT_THAT(error_of({r}), HasSubstr("batch: request 0: block_tables[window] must have"));
  const std::vector<int32_t> pages(1, 300);
  r = request(10, 10);
  r.block_tables[CacheGroup::window] = pages;
  EXPECT_THAT(error_of({r}), HasSubstr("batch: request 0 (id 70): block_tables[window][0] must be in [0, 300), is 300"));
  r = request(10, 10);
  EXPECT_THAT(builder_->build({&r, 1}, {.num_tokens = 12, .num_requests = 2}).request_ids_host, testing::ElementsAre(70));
}

}  // namespace
}  // namespace strata
