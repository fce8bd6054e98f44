#include "strata/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "batch/chunk_plan.h"
#include "core/host_device.h"
#include "unit/batch_case.h"

namespace strata {
namespace {

using oracle::group_spec;
using oracle::Model;
using oracle::Step;
using testing::ElementsAre;
using testing::HasSubstr;

// Counts what a builder requests from its device.
class CountingDevice final : public HostDevice {
 public:
  CountingDevice() : HostDevice({}, reference_only()) {}
  void* allocate(int64_t bytes) override {
    ++allocations;
    void* data = HostDevice::allocate(bytes);
    std::memset(data, 0xFF, static_cast<size_t>(bytes));
    return data;
  }
  void copy_from_host(void* dst, const void* src, int64_t bytes, Stream stream) override {
    ++copies;
    copied_bytes = bytes;
    HostDevice::copy_from_host(dst, src, bytes, stream);
  }
  void synchronize(Stream) override { ++waits; }

  int allocations = 0;
  int copies = 0;
  int waits = 0;
  int64_t copied_bytes = 0;

 private:
  static Config reference_only() {
    Config config;
    config.force["*"] = "reference";
    return config;
  }
};

BatchBuilder builder_of(const Model& m, std::shared_ptr<Device> device = oracle::one_thread()) {
  return {std::move(device), default_ops(), m.limits, m.groups, m.num_pages, m.window};
}

// Builds the step and compares everything with the definitions.
void expect_right(BatchBuilder& builder, const Model& m, const Step& step) {
  ASSERT_TRUE(oracle::is_valid_step(m, step.requests, step.padding));
  EXPECT_EQ(oracle::compare(builder.build(step.requests, step.padding), m, step.requests, step.padding), "");
}

std::string error_of(const Model& m, const Step& step) {
  BatchBuilder builder = builder_of(m);
  try {
    static_cast<void>(builder.build(step.requests, step.padding));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "";
}

std::vector<int32_t> values(const TensorView& v) { return {v.ptr<int32_t>(), v.ptr<int32_t>() + v.shape[0]}; }

const BatchLimits kLimits{.max_num_batched_tokens = 256, .max_num_seqs = 8, .max_model_len = 1024, .num_speculative_tokens = 0};

Model drafting_model(int32_t num_speculative_tokens) {
  BatchLimits limits = kLimits;
  limits.num_speculative_tokens = num_speculative_tokens;
  return oracle::v4_model(limits);
}

// V4 19, "Visibility".
TEST(Batch, VisibilityOfTheSpecification) {
  const Model m = oracle::v4_model(kLimits);
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(1);
  Step step;
  for (int64_t p : {2, 3, 7, 127, 128, 131}) step.add(m, p + 1, 1, random);
  const Batch& b = builder.build(step.requests);
  EXPECT_THAT(values(b.swa_lens), ElementsAre(3, 4, 8, 128, 128, 128));
  EXPECT_THAT(values(b.c4_lens), ElementsAre(0, 1, 2, 32, 32, 33));
  EXPECT_THAT(values(b.c128_lens), ElementsAre(0, 0, 0, 1, 1, 1));
  // p = 128: the window is 1..128.
  const auto& table = step.table(4, CacheGroup::window);
  EXPECT_EQ(b.swa_indices.row<int32_t>(4)[0], table[0] * 64 + 1);
  EXPECT_EQ(b.swa_indices.row<int32_t>(4)[127], table[2] * 64 + 0);
  expect_right(builder, m, step);
}

// V4 19, "Prefill example".
TEST(Batch, PrefillExampleOfTheSpecification) {
  const Model m = oracle::v4_model(kLimits);
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(2);
  Step step;
  step.add(m, 300, 100, random);
  const Batch& b = builder.build(step.requests);
  EXPECT_THAT(values(b.gather_lens), ElementsAre(227));
  EXPECT_EQ(b.seq_lens_host[0] - values(b.gather_lens)[0], 73);
  EXPECT_THAT(values(b.c4_seq_lens), ElementsAre(75));
  EXPECT_EQ(b.positions.ptr<int64_t>()[0], 200);
  EXPECT_EQ(values(b.c4_lens)[0], 50);
  ASSERT_EQ(b.prefill_chunks(4).size(), 1u);
  EXPECT_EQ(b.prefill_chunks(4)[0].max_compressed, 75);
  EXPECT_EQ(b.prefill_chunks(4)[0].max_rows, 75 + 227);
  EXPECT_EQ(b.prefill_chunks(1)[0].max_rows, 227);
  EXPECT_EQ(b.prefill_chunks(128)[0].max_rows, 2 + 227);
  EXPECT_THROW(b.prefill_chunks(2), Error);
  EXPECT_EQ(c128_width(1024), 128);
  EXPECT_EQ(c128_width(128 * 128), 128);
  EXPECT_EQ(c128_width(128 * 128 + 1), 256);
  EXPECT_EQ(c128_width(1048576), 8192);
  EXPECT_THROW(static_cast<void>(c128_width(-1)), Error);
  EXPECT_THROW(static_cast<void>(c128_width(std::numeric_limits<int64_t>::max())), Error);
}

// Watches the bytes after the host memory that it allocates.
class GuardedDevice final : public HostDevice {
 public:
  using HostDevice::HostDevice;
  void* allocate_host(int64_t bytes) override {
    auto* data = static_cast<unsigned char*>(HostDevice::allocate_host(bytes + kGuard));
    std::memset(data + bytes, 0xA5, kGuard);
    guards_.push_back(data + bytes);
    return data;
  }
  bool intact() const {
    return std::all_of(guards_.begin(), guards_.end(), [](const unsigned char* guard) {
      return std::all_of(guard, guard + kGuard, [](unsigned char byte) { return byte == 0xA5; });
    });
  }

 private:
  static constexpr int64_t kGuard = 4096;
  std::vector<const unsigned char*> guards_;
};

// The most table entries that a step can have: every request reaches back from the last position of a block, and its new tokens begin
// another one.
TEST(Batch, SlidingWindowsThatTouchAsManyBlocksAsTheyCan) {
  const BatchLimits limits{.max_num_batched_tokens = 384, .max_num_seqs = 128, .max_model_len = 1024, .num_speculative_tokens = 2};
  const Model m{limits, {group_spec(CacheGroup::window, 64, 1, 128)}, {1000}, 128};
  const auto device = std::make_shared<GuardedDevice>();
  BatchBuilder builder = builder_of(m, device);
  std::mt19937 random(9);
  Step step;
  for (int64_t r = 0; r < limits.max_num_seqs; ++r) step.add(m, 63 + 127 + 3, 3, random);
  expect_right(builder, m, step);
  EXPECT_TRUE(device->intact()) << "more was written than the upload has room for";
}

// What says where a step's entries go is of 32 bits.
TEST(Batch, TablesOfMoreThan32BitsAreRefused) {
  const BatchLimits limits{.max_num_batched_tokens = 4, .max_num_seqs = 4, .max_model_len = int64_t{1} << 30};
  const auto device = std::make_shared<CountingDevice>();
  try {
    builder_of({limits, {group_spec(CacheGroup::mla_latent, 1, 1, 0)}, {8}, 0}, device);
    ADD_FAILURE() << "was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("a step may need at most 2^31 - 1 entries of block tables, needs 4294967296"));
  }
  EXPECT_EQ(device->allocations, 0);
}

// Sizes that 63 bits do not count, each and in their sum, are refused before anything is allocated.
TEST(Batch, LimitsWhoseTablesNoMemoryHolds) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const BatchLimits limits{.max_num_batched_tokens = kMost, .max_num_seqs = kMost, .max_model_len = kMost};
  std::vector<CacheGroupSpec> groups;
  for (const CacheGroup group : {CacheGroup::mla_latent, CacheGroup::mla_indexer, CacheGroup::window, CacheGroup::c4_state}) {
    groups.push_back(group_spec(group, 1, 1, 0));
    const auto device = std::make_shared<CountingDevice>();
    try {
      builder_of({limits, groups, std::vector<int64_t>(groups.size(), 1), 1}, device);
      ADD_FAILURE() << groups.size() << " groups were taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("63 bits"));
    }
    EXPECT_EQ(device->allocations, 0);
  }
}

// A kernel may look at any entry of a row before it knows how many there are: those that no step has needed yet are pages, too.
TEST(Batch, TableEntriesThatNoStepHasNeededArePages) {
  const Model m = oracle::v4_model(kLimits);
  const auto device = std::make_shared<CountingDevice>();  // whose memory is 0xFF at first
  BatchBuilder builder = builder_of(m, device);
  std::mt19937 random(10);
  Step step;
  for (int64_t r = 0; r < kLimits.max_num_seqs; ++r) step.add(m, 5, 1, random);
  const Batch& batch = builder.build(step.requests);
  for (size_t g = 0; g < m.groups.size(); ++g) {
    const TensorView& table = batch[m.groups[g].group].block_table;
    ASSERT_EQ(table.shape[0], kLimits.max_num_seqs);
    for (int64_t r = 0; r < table.shape[0]; ++r) {
      for (int64_t b = 0; b < table.shape[1]; ++b) {
        const int32_t page = table.row<int32_t>(r)[b];
        ASSERT_TRUE(page >= 0 && page < m.num_pages[g]) << to_string(m.groups[g].group) << " [" << r << ", " << b << "] is " << page;
      }
    }
  }
}

TEST(Batch, MixedStep) {
  const Model m = drafting_model(3);
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(3);
  Step step;
  step.add(m, 500, 1, random);    // decode
  step.add(m, 259, 4, random);    // decode with draft tokens over a 128:1 boundary
  step.add(m, 17, 0, random);     // nothing new
  step.add(m, 64, 64, random);    // fresh prefill
  step.add(m, 0, 0, random);      // zero length, between prefills
  step.add(m, 300, 2, random);    // short last chunk after a prefill: counts as prefill
  step.add(m, 512, 100, random);  // continued prefill
  const Batch& b = builder.build(step.requests);
  EXPECT_EQ(b.num_decodes, 3);
  EXPECT_EQ(b.num_prefills, 4);
  EXPECT_EQ(b.num_decode_tokens, 5);
  EXPECT_EQ(b.num_prefill_tokens, 166);
  EXPECT_EQ(b.max_query_len, 100);
  EXPECT_EQ(b.max_seq_len, 512);
  EXPECT_THAT(b.query_start_loc_host, ElementsAre(0, 1, 5, 5, 69, 69, 71, 171));
  expect_right(builder, m, step);
  step.padding = {256, 8};
  expect_right(builder, m, step);
}

// The lengths of a decode request's tokens differ: V4 18.17.
TEST(Batch, EveryDraftTokenHasItsOwnLengths) {
  const Model m = drafting_model(3);
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(4);
  Step step;
  step.add(m, 130, 4, random);
  const Batch& b = builder.build(step.requests);
  EXPECT_EQ(b.num_prefills, 0);
  EXPECT_THAT(values(b.swa_lens), ElementsAre(127, 128, 128, 128));
  EXPECT_THAT(values(b.c4_lens), ElementsAre(31, 32, 32, 32));
  EXPECT_THAT(values(b.c128_lens), ElementsAre(0, 1, 1, 1));
  expect_right(builder, m, step);
}

// Different numbers of draft tokens, and paddings that would be uniform with the first request's.
TEST(Batch, AStepOfUnequalDraftsIsNotUniform) {
  const Model m = drafting_model(1);
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(8);
  for (const auto& [first, second, padding] :
       {std::tuple{1, 2, BatchPadding{3, 3}}, {2, 1, BatchPadding{6, 3}}, {2, 1, BatchPadding{4, 2}}}) {
    Step step;
    step.add(m, 130, first, random);
    step.add(m, 131, second, random);
    step.padding = padding;
    expect_right(builder, m, step);
    EXPECT_EQ(builder.build(step.requests, step.padding).num_request_tokens(), 3);
  }
}

// Entries of sliding groups before the window, and of all groups after the last complete row.
TEST(Batch, TableEntriesThatNobodyNeedsMayBeMinusOne) {
  const Model m = oracle::v4_model(kLimits);
  std::mt19937 random(6);
  Step step;
  step.add(m, 1000, 1, random, 3);
  step.add(m, 300, 40, random, 3);
  for (size_t r = 0; r < 2; ++r) {
    const BatchRequest& request = step.requests[r];
    for (const CacheGroupSpec& spec : m.groups) {
      std::vector<int32_t>& table = step.table(r, spec.group);
      const int64_t oldest = spec.retained > 0 ? std::max<int64_t>(request.seq_len - request.query_len - spec.retained, 0) : 0;
      for (int64_t b = 0; b < std::ssize(table); ++b) {
        const bool passed = (b + 1) * spec.positions_per_page() <= oldest, before = b >= spec.pages_for(request.seq_len);
        if (passed || before) table[static_cast<size_t>(b)] = -1;
      }
    }
  }
  EXPECT_EQ(step.table(0, CacheGroup::window)[12], -1);
  EXPECT_NE(step.table(0, CacheGroup::window)[13], -1);
  BatchBuilder builder = builder_of(m);
  expect_right(builder, m, step);
}

TEST(Batch, Padding) {
  const Model m = oracle::v4_model(kLimits);
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(5);
  Step step;
  step.add(m, 400, 200, random);  // leaves large values in the buffers
  expect_right(builder, m, step);
  step = {};
  step.add(m, 129, 1, random);
  step.padding = {.num_tokens = 4, .num_requests = 4};
  const Batch& b = builder.build(step.requests, step.padding);
  EXPECT_EQ(b.num_decodes, 4);
  EXPECT_THAT(values(b.seq_lens), ElementsAre(129, 0, 0, 0));
  EXPECT_THAT(values(b.query_start_loc), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(values(b.token_to_req), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(values(b.swa_lens), ElementsAre(128, 0, 0, 0));
  for (const CacheGroupSpec& spec : m.groups) {
    for (int64_t t = 1; t < 4; ++t) EXPECT_EQ(b[spec.group].slot_mapping.ptr<int64_t>()[t], -1) << to_string(spec.group);
  }
  expect_right(builder, m, step);
  // Nothing but padding, and nothing at all.
  step = {};
  step.padding = {.num_tokens = 8, .num_requests = 2};
  expect_right(builder, m, step);
  step.padding = {};
  expect_right(builder, m, step);
}

// 128:1 layers look through no more columns than the step's longest request has entries, or the padding says.
TEST(Batch, IndexRowsOf128AreAsWideAsTheStepNeeds) {
  BatchLimits limits = kLimits;
  limits.max_model_len = 32769;
  limits.max_num_seqs = 2;
  const Model m = oracle::v4_model(limits);
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(16);
  const struct {
    int64_t seq_len, bound, width;
  } cases[] = {{1, 0, 128}, {16384, 0, 128}, {16385, 0, 256}, {100, 32768, 256}, {100, 32769, 384}};
  for (const auto& c : cases) {
    Step step;
    step.add(m, 70, 1, random);
    step.add(m, c.seq_len, 1, random);
    step.padding.max_seq_len = c.bound;
    expect_right(builder, m, step);
    const Batch& b = builder.build(step.requests, step.padding);
    for (const TensorView& rows : {b.c128_slots, b.c128_local}) {
      EXPECT_EQ(rows.shape[1], c.width) << c.seq_len << " positions, " << c.bound;
      EXPECT_EQ(rows.stride[0], 384);
    }
  }
}

// Whatever the requests of a uniform step, its host numbers are the padding's.
TEST(Batch, UniformStepsDifferInDeviceMemoryOnly) {
  Model m = oracle::v4_model(kLimits);
  m.limits.num_speculative_tokens = 1;
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(15);
  for (const int64_t real : {0, 1, 3, 4}) {
    Step step;
    for (int64_t r = 0; r < real; ++r) step.add(m, 100 + 200 * r, 2, random);
    step.padding = {.num_tokens = 8, .num_requests = 4, .max_seq_len = 1000};
    expect_right(builder, m, step);
    const Batch& b = builder.build(step.requests, step.padding);
    EXPECT_EQ(b.num_actual_tokens, 2 * real);
    EXPECT_EQ(b.num_decodes, 4);
    EXPECT_EQ(b.num_decode_tokens, 8);
    EXPECT_EQ(b.num_request_tokens(), 8);
    EXPECT_EQ(b.max_query_len, 2);
    EXPECT_EQ(b.max_seq_len, 1000);
    EXPECT_THAT(b.query_start_loc_host, ElementsAre(0, 2, 4, 6, 8));
  }
  // Another number of tokens in one request: padding tokens are nobody's.
  Step step;
  step.add(m, 100, 2, random);
  step.add(m, 100, 1, random);
  step.padding = {.num_tokens = 8, .num_requests = 4};
  expect_right(builder, m, step);
  EXPECT_EQ(builder.build(step.requests, step.padding).num_request_tokens(), 3);
}

TEST(Batch, ChunkedPrefillThenDecode) {
  const Model m = oracle::v4_model(kLimits);
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(6);
  Step whole;
  whole.add(m, 1024, 1, random);
  int64_t seq_len = 0;
  for (int64_t tokens : {100, 156, 1, 3, 252, 256, 254, 1, 1}) {
    seq_len += tokens;
    Step step;
    step.requests.push_back(whole.requests[0]);
    step.requests[0].seq_len = seq_len;
    step.requests[0].query_len = tokens;
    expect_right(builder, m, step);
  }
  EXPECT_EQ(seq_len, 1024);
}

// Entries before what the step reads, and after what it needs, may hold anything; the oldest that it reads may not.
TEST(Batch, EntriesThatAreNotNeededAreNotLookedAt) {
  const Model m = oracle::v4_model(kLimits);
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(7);
  Step step;
  step.add(m, 962, 3, random, 2);                    // first new position 959
  auto& window = step.table(0, CacheGroup::window);  // reads 832 ... 961: blocks 13 ... 15
  for (size_t i = 0; i < window.size(); ++i) {
    if (i < 13 || i > 15) window[i] = i % 2 == 0 ? -7 : 123456789;
  }
  auto& state = step.table(0, CacheGroup::c4_state);  // reads 952 ... 961: blocks 238 ... 240
  for (size_t i = 0; i < state.size(); ++i) {
    if (i < 238 || i > 240) state[i] = -1;
  }
  auto& c128 = step.table(0, CacheGroup::c128_compressed);  // 7 complete entries: blocks 0 ... 3
  std::fill(c128.begin() + 4, c128.end(), -1);
  expect_right(builder, m, step);
  // One position earlier the step reads 831 and 951, the last positions of blocks 12 and 237.
  step.requests[0].seq_len = 961;
  EXPECT_THAT(error_of(m, step), HasSubstr("block_tables[window][12]"));
  window[12] = 0;
  EXPECT_THAT(error_of(m, step), HasSubstr("block_tables[c4_state][237]"));
  state[237] = 0;
  expect_right(builder, m, step);
}

TEST(Batch, MlaGroups) {
  Model m{kLimits, {group_spec(CacheGroup::mla_latent, 64, 1, 0), group_spec(CacheGroup::mla_indexer, 64, 1, 0)}, {100, 100}, 0};
  BatchBuilder builder = builder_of(m);
  std::mt19937 random(8);
  Step step;
  step.add(m, 700, 1, random);
  step.add(m, 128, 90, random);
  step.padding = {100, 4};
  expect_right(builder, m, step);
  const Batch& b = builder.build(step.requests, step.padding);
  EXPECT_FALSE(b.swa_indices.present());
  EXPECT_FALSE(b.c128_lens.present());
  EXPECT_EQ(b[CacheGroup::mla_latent].slot_mapping.ptr<int64_t>()[0],
            step.table(0, CacheGroup::mla_latent)[699 / 64] * int64_t{64} + 699 % 64);
}

TEST(Batch, WithoutGroups) {
  Model m{kLimits, {}, {}, 0};
  BatchBuilder builder = builder_of(m);
  Step step;
  step.requests.push_back({.seq_len = 10, .query_len = 3});
  step.padding = {4, 2};
  expect_right(builder, m, step);
}

TEST(Batch, OneCopyAndFixedAddresses) {
  const Model m = oracle::v4_model(kLimits);
  const auto device = std::make_shared<CountingDevice>();
  BatchBuilder builder = builder_of(m, device);
  EXPECT_GT(builder.allocated_bytes(), 0);
  const int allocations = device->allocations;
  std::mt19937 random(9);
  Step small, large;
  small.add(m, 5, 1, random);
  for (int i = 0; i < 8; ++i) large.add(m, 1024, 32, random);
  const Batch& b = builder.build(small.requests);
  const void* const addresses[] = {
      b.positions.data,      b.swa_indices.data, b.c128_slots.data, b[CacheGroup::c4_state].block_table.data, b.query_start_loc_host.data(),
      b.seq_lens_host.data()};
  const int64_t stride = b[CacheGroup::window].block_table.stride[0];
  const size_t small_copy = device->copied_bytes;
  EXPECT_EQ(device->copies, 1);
  const int waits = device->waits;
  expect_right(builder, m, large);
  EXPECT_EQ(device->copies, 2);
  EXPECT_EQ(device->waits, waits + 1);  // the copy before it may still read the memory that is rewritten
  const void* const later[] = {
      b.positions.data,      b.swa_indices.data, b.c128_slots.data, b[CacheGroup::c4_state].block_table.data, b.query_start_loc_host.data(),
      b.seq_lens_host.data()};
  EXPECT_THAT(later, testing::ElementsAreArray(addresses));
  EXPECT_EQ(b[CacheGroup::window].block_table.stride[0], stride);
  EXPECT_EQ(device->allocations, allocations);
  EXPECT_LT(small_copy, device->copied_bytes);  // only the step's own table entries travel
}

TEST(Batch, WhatIsCopiedFollowsThePagesInUseNotTheLongestContext) {
  const auto copied = [](int64_t max_model_len, int64_t seq_len) {
    BatchLimits limits = kLimits;
    limits.max_model_len = max_model_len;
    const Model m = oracle::v4_model(limits);
    const auto device = std::make_shared<CountingDevice>();
    BatchBuilder builder = builder_of(m, device);
    std::mt19937 random(16);
    Step step;
    step.add(m, seq_len, 1, random);
    step.add(m, 300, 1, random);
    static_cast<void>(builder.build(step.requests));
    return device->copied_bytes;
  };
  EXPECT_EQ(copied(1 << 20, 1000), copied(1024, 1000));
  // Entries of the groups that keep everything: two of 256 positions a page, and one.
  EXPECT_EQ(copied(1 << 20, 102400) - copied(1 << 20, 51200), (2 + 1) * 51200 / 256 * sizeof(int32_t));
}

TEST(Batch, RandomSteps) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
    Model m;
    m.window = 1 + below(140);
    m.limits = {.max_num_batched_tokens = 1 + below(300),
                .max_num_seqs = 1 + below(9),
                .max_model_len = 1 + below(700),
                .num_speculative_tokens = static_cast<int32_t>(below(4))};
    for (CacheGroupSpec spec : oracle::v4_groups(m.window)) {
      if (below(4) == 0) continue;
      if (below(2) == 0) spec.page_size = static_cast<int32_t>(1 + below(70));
      if (spec.retained > 0 && below(3) == 0) spec.retained = below(2) == 0 ? 0 : spec.retained + below(20);
      m.groups.push_back(spec);
      m.num_pages.push_back(1 + below(50));
    }
    BatchBuilder builder = builder_of(m);
    for (int repeat = 0; repeat < 4; ++repeat) {
      Step step;
      int64_t tokens_left = m.limits.max_num_batched_tokens;
      for (int64_t r = below(m.limits.max_num_seqs + 1); r > 0; --r) {
        const int64_t seq_len = below(m.limits.max_model_len + 1);
        const int64_t most = std::min(seq_len, tokens_left);
        const int64_t query_len = below(3) == 0 ? below(most + 1) : std::min<int64_t>(most, below(6));
        tokens_left -= query_len;
        step.add(m, seq_len, query_len, random, below(2));
      }
      if (below(2) == 0)
        std::stable_sort(step.requests.begin(), step.requests.end(),
                         [](const auto& a, const auto& b) { return a.query_len < b.query_len; });
      if (below(2) == 0) step.padding.num_tokens = m.limits.max_num_batched_tokens - below(tokens_left + 1);
      if (below(2) == 0 || step.requests.empty()) step.padding.num_requests = m.limits.max_num_seqs;
      if (below(4) == 0) step.padding.max_seq_len = m.limits.max_model_len;
      expect_right(builder, m, step);
    }
  }
}

// The same plan from different tables, lengths or neighbours must not leak: a build depends on its arguments only.
TEST(Batch, BuildsAreIndependent) {
  const Model m = oracle::v4_model(kLimits);
  BatchBuilder used = builder_of(m);
  std::mt19937 random(10);
  Step before, step;
  for (int i = 0; i < 8; ++i) before.add(m, 1000, 30, random);
  step.add(m, 200, 7, random);
  step.add(m, 3, 3, random);
  step.padding = {64, 6};
  static_cast<void>(used.build(before.requests));
  expect_right(used, m, step);
  BatchBuilder moved = std::move(used);
  expect_right(moved, m, step);
}

TEST(Batch, FailedBuildChangesNothing) {
  const Model m = oracle::v4_model(kLimits);
  const auto device = std::make_shared<CountingDevice>();
  BatchBuilder builder = builder_of(m, device);
  std::mt19937 random(11);
  Step step, bad;
  step.add(m, 200, 7, random);
  bad.add(m, 150, 2, random);
  bad.add(m, 100, 2, random);
  bad.table(1, CacheGroup::c128_state).back() = -1;
  const Batch& b = builder.build(step.requests);
  EXPECT_THROW(static_cast<void>(builder.build(bad.requests)), Error);
  EXPECT_EQ(device->copies, 1);
  EXPECT_EQ(oracle::compare(b, m, step.requests, {}), "");
}

TEST(BatchErrors, Lengths) {
  const Model m = oracle::v4_model(kLimits);
  std::mt19937 random(12);
  const auto error = [&](int64_t seq_len, int64_t query_len) {
    Step step;
    step.add(m, 10, 1, random);
    step.add(m, 10, 1, random);
    step.requests[1].seq_len = seq_len;
    step.requests[1].query_len = query_len;
    return error_of(m, step);
  };
  EXPECT_EQ(error(10, 1), "");
  EXPECT_EQ(error(3, 4), "batch: request 1: seq_len must be at least query_len = 4, is 3");
  EXPECT_EQ(error(-1, 0), "batch: request 1: seq_len must not be negative, is -1");
  EXPECT_EQ(error(4, -2), "batch: request 1: query_len must not be negative, is -2");
  EXPECT_EQ(error(1025, 1), "batch: request 1: seq_len must be at most max_model_len = 1024, is 1025");
  EXPECT_EQ(error(INT64_MAX, INT64_MAX), "batch: request 1: seq_len must be at most max_model_len = 1024, is 9223372036854775807");
}

TEST(BatchErrors, Counts) {
  const Model m = oracle::v4_model(kLimits);
  std::mt19937 random(13);
  Step step;
  step.add(m, 300, 200, random);
  step.padding = {.num_tokens = 199};
  EXPECT_EQ(error_of(m, step), "batch: padding.num_tokens must be 0 or at least the batch's 200, is 199");
  step.padding = {.num_tokens = 257};
  EXPECT_EQ(error_of(m, step), "batch: padding.num_tokens must be at most max_num_batched_tokens = 256, is 257");
  step.padding = {.num_tokens = -1};
  EXPECT_EQ(error_of(m, step), "batch: padding.num_tokens must be 0 or at least the batch's 200, is -1");
  step.padding = {.num_requests = 9};
  EXPECT_EQ(error_of(m, step), "batch: padding.num_requests must be at most max_num_seqs = 8, is 9");
  step.padding = {.max_seq_len = 299};
  EXPECT_EQ(error_of(m, step), "batch: padding.max_seq_len must be 0 or in [the batch's 300, max_model_len = 1024], is 299");
  step.padding = {.max_seq_len = 1025};
  EXPECT_EQ(error_of(m, step), "batch: padding.max_seq_len must be 0 or in [the batch's 300, max_model_len = 1024], is 1025");
  step.padding = {};
  step.add(m, 57, 57, random);
  EXPECT_EQ(error_of(m, step), "batch: the number of tokens must be at most max_num_batched_tokens = 256, is 257");
  step.padding = {.num_requests = 1};
  EXPECT_EQ(error_of(m, step), "batch: padding.num_requests must be 0 or at least the batch's 2, is 1");
  step = {};
  for (int i = 0; i < 9; ++i) step.add(m, 5, 1, random);
  EXPECT_EQ(error_of(m, step), "batch: the number of requests must be at most max_num_seqs = 8, is 9");
  step = {};
  step.padding = {.num_tokens = 4};
  EXPECT_EQ(error_of(m, step), "batch: padding.num_requests must be at least 1 for 4 padding tokens, is 0");
}

TEST(BatchErrors, BlockTables) {
  const Model m = oracle::v4_model(kLimits, 128, 50);
  for (const CacheGroupSpec& spec : m.groups) {
    SCOPED_TRACE(to_string(spec.group));
    const std::string name = fmt::format("batch: request 1: block_tables[{}]", to_string(spec.group));
    const auto last = static_cast<size_t>((512 + spec.positions_per_page() - 1) / spec.positions_per_page()) - 1;
    for (int32_t page : {-1, 50, INT32_MAX, INT32_MIN}) {
      std::mt19937 random(14);
      Step step;
      step.add(m, 512, 3, random);
      step.add(m, 512, 3, random);
      step.table(1, spec.group)[last] = page;
      EXPECT_EQ(error_of(m, step), fmt::format("{}[{}] must be in [0, 50), is {}", name, last, page));
    }
    std::mt19937 random(15);
    Step step;
    step.add(m, 512, 3, random);
    step.add(m, 512, 3, random);
    step.table(1, spec.group).resize(last);
    step.rebind();
    EXPECT_EQ(error_of(m, step), fmt::format("{} must have at least {} entries for seq_len 512, has {}", name, last + 1, last));
    step.requests[1].block_tables[spec.group] = {};
    EXPECT_THAT(error_of(m, step), HasSubstr("has 0"));
  }
}

TEST(BatchErrors, Construction) {
  const auto error = [](auto change) -> std::string {
    Model m = oracle::v4_model(kLimits);
    change(m);
    try {
      builder_of(m);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error([](Model&) {}), "");
  EXPECT_THAT(error([](Model& m) { m.limits.max_num_batched_tokens = 0; }), HasSubstr("max_num_batched_tokens must be in [1, 2^31), is 0"));
  EXPECT_THAT(error([](Model& m) { m.limits.max_num_seqs = -1; }), HasSubstr("max_num_seqs must be in [1, 2^31), is -1"));
  EXPECT_THAT(error([](Model& m) { m.limits.max_model_len = int64_t{1} << 31; }), HasSubstr("max_model_len"));
  EXPECT_THAT(error([](Model& m) { m.limits.num_speculative_tokens = -1; }), HasSubstr("num_speculative_tokens"));
  EXPECT_THAT(error([](Model& m) { m.num_pages.pop_back(); }), HasSubstr("num_pages must have one entry for each of the 7 groups, has 6"));
  EXPECT_THAT(error([](Model& m) { m.groups[1] = m.groups[0]; }), HasSubstr("group window must be named once"));
  EXPECT_THAT(error([](Model& m) { m.window = 0; }), HasSubstr("window must be positive"));
  EXPECT_THAT(error([](Model& m) { m.window = -1; }), HasSubstr("window must be in [0"));
  EXPECT_THAT(error([](Model& m) { m.window = 129; }), HasSubstr("window.retained must be 0 or at least 129, is 128"));
  EXPECT_THAT(error([](Model& m) { m.groups[3].retained = 7; }), HasSubstr("c4_state.retained must be 0 or at least 8, is 7"));
  EXPECT_THAT(error([](Model& m) { m.groups[1].retained = 8; }), HasSubstr("c4_compressed.retained must be 0"));
  EXPECT_THAT(error([](Model& m) { m.groups[0].retained = -1; }), HasSubstr("window.retained must be in [0, 2^31), is -1"));
  EXPECT_THAT(error([](Model& m) { m.groups[0].retained = int64_t{1} << 31; }), HasSubstr("window.retained must be in [0, 2^31), is 2147"));
  EXPECT_THAT(error([](Model& m) { m.groups[0].page_size = 0; }), HasSubstr("window.page_size must be positive"));
  EXPECT_THAT(error([](Model& m) { m.groups[1].ratio = 1; }), HasSubstr("c4_compressed.ratio must be 4, is 1"));
  EXPECT_THAT(error([](Model& m) { m.groups[0].num_query_heads = -1; }), HasSubstr("window.num_query_heads must not be negative, is -1"));
  EXPECT_THAT(error([](Model& m) { m.num_pages[0] = -1; }), HasSubstr("num_pages of group window must be in [0, 33554432], is -1"));
  EXPECT_THAT(error([](Model& m) { m.num_pages[0] = 33554433; }), HasSubstr("is 33554433"));  // slots are i32
  EXPECT_EQ(error([](Model& m) { m.num_pages[0] = 33554432; }), "");
}

TEST(BatchErrors, ADeviceIsRequired) {
  try {
    builder_of(oracle::v4_model(kLimits), nullptr);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(e.what(), HasSubstr("device is required, is null"));
  }
}

TEST(DecodeFirstOrder, IsStable) {
  std::vector<BatchRequest> requests;
  for (int64_t query_len : {5, 1, 0, 3, 2, 9, 1}) requests.push_back({.seq_len = 10, .query_len = query_len});
  EXPECT_THAT(decode_first_order(requests, 0), ElementsAre(1, 2, 6, 0, 3, 4, 5));
  EXPECT_THAT(decode_first_order(requests, 1), ElementsAre(1, 2, 4, 6, 0, 3, 5));
  EXPECT_THAT(decode_first_order(requests, 8), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(decode_first_order({}, 0), ElementsAre());
}

}  // namespace
}  // namespace strata
