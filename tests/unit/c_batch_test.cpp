// Batches of the C API: the metadata of the C++ builder, and every wrong use.
#include "c_calls.h"

#include <array>
#include <limits>
#include <vector>

#include "strata/attention.h"

namespace strata {
namespace {

using test::OwnedBuilder;
using test::OwnedCDevice;
using test::OwnedConfig;
using test::OwnedPool;
using ::testing::HasSubstr;

class CBatch : public ::testing::Test {
 protected:
  // Of the layers of a tiny model: pools and builders of both APIs.
  explicit CBatch(const char* model = "v4-tiny") {
    limits_.max_num_batched_tokens = 64;
    limits_.max_num_seqs = 4;
    limits_.max_model_len = 700;
    strata_layer_options options = strata_layer_options_default();
    options.limits = &limits_;
    const ModelConfig want = preset(model);
    window_ = want.sliding_window;
    LayerOptions cxx_options;
    cxx_options.limits = cxx_limits_;
    const OwnedConfig config = test::c_preset(model);
    std::vector<strata_cache_group_spec> specs;
    std::vector<int64_t> counts;
    std::vector<std::vector<CacheGroupSpec>> cxx;
    for (int64_t layer = 0; layer < want.num_hidden_layers; ++layer) {
      std::array<strata_cache_group_spec, STRATA_NUM_CACHE_GROUPS> of_layer{};
      of_layer[0] = strata_cache_group_spec_default();
      int64_t count = 0;
      EXPECT_DONE(strata_cache_groups_of_layer(config, &options, layer, of_layer.data(), STRATA_NUM_CACHE_GROUPS, &count));
      specs.insert(specs.end(), of_layer.begin(), of_layer.begin() + count);
      counts.push_back(count);
      cxx.push_back(cache_groups_of_layer(want, cxx_options, layer));
    }
    strata_layer_groups groups = strata_layer_groups_default();
    groups.specs = specs.data();
    groups.num_specs = counts.data();
    groups.num_layers = std::ssize(counts);
    std::array<int64_t, STRATA_NUM_CACHE_GROUPS> pages{};
    EXPECT_DONE(strata_plan_pages(&groups, &limits_, 0, pages.data(), std::ssize(pages)));
    strata_pool_params params = strata_pool_params_default();
    params.layer_groups = &groups;
    params.pages = pages.data();
    params.num_groups = std::ssize(pages);
    EXPECT_DONE(strata_pool_create(device_, &params, &pool_));
    cxx_pool_ = std::make_unique<PagedPool>(cxx_device_, cxx, plan_pages(cxx, cxx_limits_));
    params_.limits = &limits_;
    params_.pool = pool_;
    params_.window = window_;
    EXPECT_DONE(strata_batch_builder_create(device_, &params_, &builder_));
    cxx_builder_ = std::make_unique<BatchBuilder>(cxx_device_, default_ops(), cxx_limits_, *cxx_pool_, window_);
    for (const int64_t id : {7, 8, 9}) {
      add(id, 100 * (id - 7), 100 * (id - 7) + (id == 9 ? 30 : 1));
    }
  }
  void add(int64_t id, int64_t computed, int64_t len) {
    int32_t extended = 0;
    EXPECT_DONE(strata_pool_add_request(pool_, id));
    EXPECT_DONE(strata_pool_extend(pool_, id, computed, len, &extended));
    EXPECT_EQ(extended, 1);
    cxx_pool_->add_request(id);
    EXPECT_TRUE(cxx_pool_->extend(id, computed, len));
    strata_batch_request request = strata_batch_request_default();
    request.seq_len = len;
    request.query_len = len - computed;
    request.pool = pool_;
    request.pool_request = id;
    requests_.push_back(request);
  }
  std::vector<BatchRequest> cxx_requests() const {
    std::vector<BatchRequest> result;
    for (const strata_batch_request& r : requests_) {
      result.push_back(
          {.seq_len = r.seq_len, .query_len = r.query_len, .block_tables = cxx_pool_->block_tables(r.pool_request), .id = r.id});
    }
    return result;
  }
  strata_status build(const strata_batch_padding* padding = nullptr) {
    return strata_batch_build(builder_, requests_.data(), std::ssize(requests_), padding, {});
  }

  // Every count and tensor of the C batch is the C++ one's.
  void expect_same(const Batch& want) {
    strata_batch_info info = strata_batch_info_default();
    ASSERT_DONE(strata_batch_get_info(builder_, &info));
    EXPECT_EQ(info.num_tokens, want.num_tokens);
    EXPECT_EQ(info.num_actual_tokens, want.num_actual_tokens);
    EXPECT_EQ(info.num_requests, want.num_requests);
    EXPECT_EQ(info.num_decodes, want.num_decodes);
    EXPECT_EQ(info.num_prefills, want.num_prefills);
    EXPECT_EQ(info.num_decode_tokens, want.num_decode_tokens);
    EXPECT_EQ(info.num_prefill_tokens, want.num_prefill_tokens);
    EXPECT_EQ(info.max_query_len, want.max_query_len);
    EXPECT_EQ(info.max_seq_len, want.max_seq_len);
    const auto r = static_cast<size_t>(info.num_requests);
    EXPECT_EQ(std::vector<int32_t>(info.query_start_loc_host, info.query_start_loc_host + r + 1), want.query_start_loc_host);
    EXPECT_EQ(std::vector<int32_t>(info.seq_lens_host, info.seq_lens_host + r), want.seq_lens_host);
    EXPECT_EQ(std::vector<int64_t>(info.request_ids_host, info.request_ids_host + info.num_request_ids), want.request_ids_host);
    const std::pair<strata_batch_tensor, TensorView> tensors[] = {{STRATA_BATCH_POSITIONS, want.positions},
                                                                  {STRATA_BATCH_QUERY_START_LOC, want.query_start_loc},
                                                                  {STRATA_BATCH_SEQ_LENS, want.seq_lens},
                                                                  {STRATA_BATCH_TOKEN_TO_REQ, want.token_to_req},
                                                                  {STRATA_BATCH_IS_VALID_TOKEN, want.is_valid_token},
                                                                  {STRATA_BATCH_SWA_INDICES, want.swa_indices},
                                                                  {STRATA_BATCH_SWA_LENS, want.swa_lens},
                                                                  {STRATA_BATCH_C4_LENS, want.c4_lens},
                                                                  {STRATA_BATCH_C128_SLOTS, want.c128_slots},
                                                                  {STRATA_BATCH_C128_LOCAL, want.c128_local},
                                                                  {STRATA_BATCH_C128_LENS, want.c128_lens},
                                                                  {STRATA_BATCH_C128_SCHEDULE, want.c128_schedule},
                                                                  {STRATA_BATCH_MLA_SCHEDULE, want.mla_schedule},
                                                                  {STRATA_BATCH_MLA_LENS, want.mla_lens},
                                                                  {STRATA_BATCH_GATHER_LENS, want.gather_lens},
                                                                  {STRATA_BATCH_C4_SEQ_LENS, want.c4_seq_lens},
                                                                  {STRATA_BATCH_C128_SEQ_LENS, want.c128_seq_lens}};
    for (const auto& [tensor, view] : tensors) {
      SCOPED_TRACE(tensor);
      strata_tensor_view got{};
      got.rank = 77;
      ASSERT_DONE(strata_batch_get_tensor(builder_, tensor, &got));
      expect_same(got, view);
    }
    for (int32_t g = 0; g < STRATA_NUM_CACHE_GROUPS; ++g) {
      SCOPED_TRACE(strata_cache_group_name(g));
      strata_group_metadata got = strata_group_metadata_default();
      ASSERT_DONE(strata_batch_get_group(builder_, g, &got));
      const GroupMetadata& group = want.groups[static_cast<size_t>(g)];
      EXPECT_EQ(got.present, group.present);
      EXPECT_EQ(got.num_pages, group.num_pages);
      expect_same(got.slot_mapping, group.slot_mapping);
      EXPECT_EQ(got.block_table.rank, group.block_table.rank);
    }
    for (const int32_t ratio : {1, 4, 128}) {
      const std::vector<PrefillChunk>& chunks = want.prefill_chunks(ratio);
      std::array<strata_prefill_chunk, 4> got{};
      got[0] = strata_prefill_chunk_default();
      int64_t count = 0;
      ASSERT_DONE(strata_batch_prefill_chunks(builder_, ratio, got.data(), 4, &count));
      ASSERT_EQ(count, std::ssize(chunks));
      for (size_t i = 0; i < chunks.size(); ++i) {
        EXPECT_EQ(got[i].first_request, chunks[i].first_request);
        EXPECT_EQ(got[i].num_requests, chunks[i].num_requests);
        EXPECT_EQ(got[i].first_token, chunks[i].first_token);
        EXPECT_EQ(got[i].num_tokens, chunks[i].num_tokens);
        EXPECT_EQ(got[i].max_compressed, chunks[i].max_compressed);
        EXPECT_EQ(got[i].max_rows, chunks[i].max_rows);
      }
    }
  }
  static void expect_same(const strata_tensor_view& got, const TensorView& want) {
    ASSERT_EQ(got.rank, want.rank);
    if (!want.present()) {
      EXPECT_EQ(got.data, nullptr);
      return;
    }
    EXPECT_EQ(got.dtype, static_cast<int32_t>(want.dtype));
    for (int32_t i = 0; i < want.rank; ++i) {
      EXPECT_EQ(got.shape[i], want.shape[static_cast<size_t>(i)]);
      EXPECT_EQ(got.stride[i], want.stride[static_cast<size_t>(i)]);
    }
    const int64_t rows = want.shape[0], bytes = want.numel() / std::max<int64_t>(rows, 1) * strata_dtype_bytes(got.dtype);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t offset = row * want.stride[0] * strata_dtype_bytes(got.dtype);
      EXPECT_EQ(std::memcmp(static_cast<const char*>(got.data) + offset, static_cast<const char*>(want.data) + offset,
                            static_cast<size_t>(bytes)),
                0)
          << "row " << row;
    }
  }

  strata_batch_limits limits_ = strata_batch_limits_default();
  const BatchLimits cxx_limits_{.max_num_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 700};
  int64_t window_ = 0;
  const OwnedCDevice device_ = test::open_c_device();
  const std::shared_ptr<Device> cxx_device_ = open_device({});
  OwnedPool pool_;
  std::unique_ptr<PagedPool> cxx_pool_;
  strata_batch_builder_params params_ = strata_batch_builder_params_default();
  OwnedBuilder builder_;
  std::unique_ptr<BatchBuilder> cxx_builder_;
  std::vector<strata_batch_request> requests_;
};
class CMlaBatch : public CBatch {
 protected:
  CMlaBatch() : CBatch("v3.2-tiny") {}
};

TEST_F(CBatch, IsTheCxxBatch) {
  ASSERT_DONE(build());
  expect_same(cxx_builder_->build(cxx_requests()));
  requests_.resize(1);  // one decode request of one token, padded
  strata_batch_padding padding = strata_batch_padding_default();
  padding.num_tokens = padding.num_requests = 4;
  padding.max_seq_len = 600;
  ASSERT_DONE(build(&padding));
  expect_same(cxx_builder_->build(cxx_requests(), {.num_tokens = 4, .num_requests = 4, .max_seq_len = 600}));
  requests_.clear();
  ASSERT_DONE(build());
  expect_same(cxx_builder_->build({}));
  int64_t bytes = 0;
  EXPECT_DONE(strata_batch_builder_allocated_bytes(builder_, &bytes));
  EXPECT_EQ(bytes, cxx_builder_->allocated_bytes());
}

TEST_F(CMlaBatch, IsTheCxxBatch) {
  ASSERT_DONE(build());
  expect_same(cxx_builder_->build(cxx_requests()));
}

// The same steps from an engine's own tables, and a builder of groups instead of a pool.
TEST_F(CBatch, OwnTablesAndGroups) {
  std::array<strata_cache_group_spec, STRATA_NUM_CACHE_GROUPS> groups{};
  groups[0] = strata_cache_group_spec_default();
  int64_t count = 0;
  ASSERT_DONE(strata_pool_groups(pool_, groups.data(), std::ssize(groups), &count));
  const std::vector<int64_t> pages = cxx_pool_->num_pages();
  params_.pool = {};
  params_.groups = groups.data();
  params_.num_groups = count;
  params_.num_pages = pages.data();
  builder_.reset();
  ASSERT_DONE(strata_batch_builder_create(device_, &params_, &builder_));

  std::vector<std::array<std::vector<int32_t>, STRATA_NUM_CACHE_GROUPS>> tables(requests_.size());
  std::vector<std::array<const int32_t*, STRATA_NUM_CACHE_GROUPS>> pointers(requests_.size());
  std::vector<std::array<int64_t, STRATA_NUM_CACHE_GROUPS>> lens(requests_.size());
  const std::vector<BatchRequest> want = cxx_requests();
  for (size_t i = 0; i < requests_.size(); ++i) {
    for (size_t g = 0; g < STRATA_NUM_CACHE_GROUPS; ++g) {
      const auto table = want[i].block_tables[static_cast<CacheGroup>(g)];
      tables[i][g].assign(table.begin(), table.end());
      pointers[i][g] = tables[i][g].empty() ? nullptr : tables[i][g].data();
      lens[i][g] = std::ssize(tables[i][g]);
    }
    requests_[i].pool = {};
    requests_[i].block_tables = pointers[i].data();
    requests_[i].block_table_lens = lens[i].data();
    requests_[i].num_block_tables = STRATA_NUM_CACHE_GROUPS;
    requests_[i].id = requests_[i].pool_request;
  }
  ASSERT_DONE(build());
  expect_same(cxx_builder_->build(want));

  lens[1][STRATA_GROUP_WINDOW] -= 1;
  EXPECT_FAILS(build(), STRATA_INVALID_ARGUMENT, "request 1 (id 8): block_tables[window] must have at least");
  lens[1][STRATA_GROUP_WINDOW] = -1;
  EXPECT_FAILS(build(), STRATA_INVALID_ARGUMENT, "request 1: block_tables[window]: expected");
  lens[1][STRATA_GROUP_WINDOW] = 5;
  pointers[1][STRATA_GROUP_WINDOW] = nullptr;
  EXPECT_FAILS(build(), STRATA_INVALID_ARGUMENT, "request 1: block_tables[window]: expected 5 entries, is null");
  pointers[1][STRATA_GROUP_WINDOW] = tables[1][STRATA_GROUP_WINDOW].data();
  lens[1][STRATA_GROUP_WINDOW] = std::ssize(tables[1][STRATA_GROUP_WINDOW]);
  tables[1][STRATA_GROUP_WINDOW].back() = 100000;
  EXPECT_FAILS(build(), STRATA_INVALID_ARGUMENT, "must be in [0, ");
  requests_[1].block_table_lens = nullptr;
  EXPECT_FAILS(build(), STRATA_INVALID_ARGUMENT, "block_table_lens: expected an array of 9, is null");
  requests_[1].num_block_tables = -1;
  EXPECT_FAILS(build(), STRATA_INVALID_ARGUMENT, "number of block_tables: expected at least 0, is -1");
  requests_[1].num_block_tables = 0;
  EXPECT_FAILS(build(), STRATA_INVALID_ARGUMENT, "request 1 (id 8): block_tables[window] must have at least");
  requests_[1].seq_len = requests_[1].query_len = 0;
  EXPECT_DONE(build());  // a request without positions needs no tables
}

TEST_F(CBatch, DecodeFirstOrder) {
  std::swap(requests_[0], requests_[2]);
  std::array<int64_t, 3> order{};
  ASSERT_DONE(strata_decode_first_order(requests_.data(), 3, 0, order.data()));
  EXPECT_EQ((std::vector<int64_t>(order.begin(), order.end())), decode_first_order(cxx_requests(), 0));
  EXPECT_EQ(order[2], 0);
  requests_[1].pool = {~uint64_t{0}};
  EXPECT_DONE(strata_decode_first_order(requests_.data(), 3, 0, order.data()));  // only query_len is read
  EXPECT_DONE(strata_decode_first_order(nullptr, 0, 0, nullptr));
  EXPECT_FAILS(strata_decode_first_order(nullptr, 3, 0, order.data()), STRATA_INVALID_ARGUMENT,
               "requests: expected an array of 3, is null");
  EXPECT_FAILS(strata_decode_first_order(requests_.data(), -3, 0, order.data()), STRATA_INVALID_ARGUMENT, "number of requests");
  EXPECT_FAILS(strata_decode_first_order(requests_.data(), 3, 0, nullptr), STRATA_INVALID_ARGUMENT,
               "order: expected an array of 3, is null");
}

TEST_F(CBatch, NumbersOfWorkspaces) {
  int64_t value = 0;
  for (const int32_t ratio : {1, 4, 128}) {
    EXPECT_DONE(strata_prefill_workspace_rows(&limits_, ratio, window_, &value));
    EXPECT_EQ(value, prefill_workspace_rows(cxx_limits_, ratio, window_));
  }
  EXPECT_DONE(strata_c128_width(100000, &value));
  EXPECT_EQ(value, c128_width(100000));
  value = 7;
  EXPECT_FAILS(strata_prefill_workspace_rows(&limits_, 2, window_, &value), STRATA_INVALID_ARGUMENT, "ratio");
  EXPECT_FAILS(strata_prefill_workspace_rows(&limits_, 4, -1, &value), STRATA_INVALID_ARGUMENT, "window");
  EXPECT_FAILS(strata_prefill_workspace_rows(nullptr, 4, 128, &value), STRATA_INVALID_ARGUMENT, "limits: expected a strata_batch_limits");
  EXPECT_FAILS(strata_prefill_workspace_rows(&limits_, 4, 128, nullptr), STRATA_INVALID_ARGUMENT, "rows: expected a pointer, is null");
  EXPECT_FAILS(strata_c128_width(-1, &value), STRATA_INVALID_ARGUMENT, "-1");
  EXPECT_FAILS(strata_c128_width(int64_t{1} << 31, &value), STRATA_INVALID_ARGUMENT, "2147483648");
  EXPECT_FAILS(strata_c128_width(1, nullptr), STRATA_INVALID_ARGUMENT, "width: expected a pointer, is null");
  EXPECT_EQ(value, 7);
}

TEST_F(CBatch, WrongBuilders) {
  const auto create = [&](const strata_batch_builder_params* params) {
    OwnedBuilder builder;
    const strata_status status = strata_batch_builder_create(device_, params, &builder);
    if (status != STRATA_OK) {
      EXPECT_EQ(strata_batch_builder(builder).value, 0u);
    }
    return status;
  };
  EXPECT_FAILS(create(nullptr), STRATA_INVALID_ARGUMENT, "params: expected a strata_batch_builder_params, is null");
  EXPECT_FAILS(strata_batch_builder_create(device_, &params_, nullptr), STRATA_INVALID_ARGUMENT, "builder: expected a pointer, is null");
  const auto refused = [&](auto&& change, strata_status status, const char* part) {
    strata_batch_builder_params params = params_;
    change(params);
    EXPECT_FAILS(create(&params), status, part);
  };
  strata_cache_group_spec spec = strata_cache_group_spec_default();
  spec.page_size = 64;
  const int64_t pages[] = {3, 4};
  const strata_cache_group_spec twice[] = {spec, spec};
  refused([](auto& p) { p.limits = nullptr; }, STRATA_INVALID_ARGUMENT, "params.limits: expected a strata_batch_limits, is null");
  refused([](auto& p) { p.window = -1; }, STRATA_INVALID_ARGUMENT, "window must be in [0, 2^31), is -1");
  refused([](auto& p) { p.pool.value = 3; }, STRATA_INVALID_HANDLE, "which was never made");
  refused([](auto& p) { p.num_groups = 1; }, STRATA_INVALID_ARGUMENT, "expected a pool or groups, has both");
  refused([](auto& p) { p.pool = {}, p.num_groups = -1; }, STRATA_INVALID_ARGUMENT, "number of params.groups: expected at least 0, is -1");
  refused([](auto& p) { p.pool = {}, p.num_groups = 1; }, STRATA_INVALID_ARGUMENT, "params.groups: expected an array of 1, is null");
  refused([&](auto& p) { p.pool = {}, p.num_groups = 1, p.groups = &spec; }, STRATA_INVALID_ARGUMENT,
          "params.num_pages: expected an array");
  refused([&](auto& p) { p.pool = {}, p.num_groups = 2, p.groups = twice, p.num_pages = pages; }, STRATA_INVALID_ARGUMENT,
          "is named twice");
  limits_.max_num_batched_tokens = int64_t{1} << 31;
  refused([](auto&) {}, STRATA_INVALID_ARGUMENT, "max_num_batched_tokens must be in [1, 2^31)");
  limits_.max_num_batched_tokens = 64;
  test::expect_versions_refused(params_, "strata_batch_builder_params", create);
  test::expect_versions_refused(limits_, "strata_batch_limits", [&](const strata_batch_limits* limits) {
    strata_batch_builder_params params = params_;
    params.limits = limits;
    return create(&params);
  });
}

TEST_F(CBatch, WrongStepsChangeNothing) {
  const Batch& want = cxx_builder_->build(cxx_requests());
  ASSERT_DONE(build());
  const std::vector<strata_batch_request> valid = requests_;
  const auto refused = [&](auto&& change, strata_status status, const char* part) {
    requests_ = valid;
    change(requests_);
    EXPECT_FAILS(build(), status, part);
  };
  refused([](auto& r) { r[1].query_len = -1; }, STRATA_INVALID_ARGUMENT, "request 1 (id 8): query_len must not be negative, is -1");
  refused([](auto& r) { r[1].query_len = 500; }, STRATA_INVALID_ARGUMENT, "seq_len must be at least query_len");
  refused([](auto& r) { r[1].seq_len = 701; }, STRATA_INVALID_ARGUMENT, "seq_len must be at most max_model_len = 700, is 701");
  refused([](auto& r) { r[2].query_len = 80; }, STRATA_INVALID_ARGUMENT, "tokens must be at most max_num_batched_tokens = 64");
  refused([](auto& r) { r.resize(5, r[0]); }, STRATA_INVALID_ARGUMENT, "requests must be at most max_num_seqs = 4, is 5");
  refused([](auto& r) { r[1].pool_request = 55; }, STRATA_INVALID_ARGUMENT, "request 1: paged pool: request 55 is not known");
  refused([](auto& r) { r[1].pool.value = 2; }, STRATA_INVALID_HANDLE, "strata_pool");
  refused([](auto& r) { r[1].num_block_tables = 1; }, STRATA_INVALID_ARGUMENT, "request 1: expected a pool or block_tables, has both");
  refused([](auto& r) { r[1].struct_size += 8; }, STRATA_INVALID_ARGUMENT, "element 1 has struct_size 80, expected 72");
  refused([](auto& r) { r[1].seq_len = 300; }, STRATA_INVALID_ARGUMENT, "must have at least");
  requests_ = valid;
  EXPECT_FAILS(strata_batch_build(builder_, nullptr, 3, nullptr, {}), STRATA_INVALID_ARGUMENT, "requests: expected an array of 3, is null");
  EXPECT_FAILS(strata_batch_build(builder_, valid.data(), -1, nullptr, {}), STRATA_INVALID_ARGUMENT, "number of requests");
  EXPECT_FAILS(strata_batch_build(builder_, valid.data(), 3, nullptr, {9}), STRATA_INVALID_HANDLE, "strata_stream");
  strata_batch_padding padding = strata_batch_padding_default();
  padding.num_tokens = 1;
  EXPECT_FAILS(build(&padding), STRATA_INVALID_ARGUMENT, "padding.num_tokens must be 0 or at least the batch's 32, is 1");
  padding.num_tokens = -1;
  EXPECT_FAILS(build(&padding), STRATA_INVALID_ARGUMENT, "padding.num_tokens");
  expect_same(want);  // the last batch stays
  test::expect_versions_refused(strata_batch_padding_default(), "strata_batch_padding", [&](const auto* p) { return build(p); });
  test::expect_versions_refused(valid[0], "strata_batch_request",
                                [&](const auto* r) { return strata_batch_build(builder_, r, 1, nullptr, {}); });
}

// Tables are those of the pool at the time of the build; a removed request is refused.
TEST_F(CBatch, TablesAreThePoolsAtTheTimeOfTheBuild) {
  int32_t extended = 0;
  requests_.erase(requests_.begin() + 1, requests_.end());
  EXPECT_DONE(strata_pool_extend(pool_, 7, 1, 40, &extended));
  EXPECT_TRUE(cxx_pool_->extend(7, 1, 40));
  requests_[0].seq_len = 40;
  requests_[0].query_len = 39;
  ASSERT_DONE(build());
  expect_same(cxx_builder_->build(cxx_requests()));
  EXPECT_DONE(strata_pool_remove_request(pool_, 7));
  EXPECT_FAILS(build(), STRATA_INVALID_ARGUMENT, "request 7 is not known");
  // The builder needs no pool; its requests do.
  pool_.reset();
  EXPECT_FAILS(build(), STRATA_INVALID_HANDLE, "which is destroyed");
  requests_.clear();
  EXPECT_DONE(build());
}

TEST_F(CBatch, NoStepYetAndWrongResults) {
  strata_batch_info info = strata_batch_info_default();
  strata_tensor_view view{};
  strata_group_metadata group = strata_group_metadata_default();
  int64_t value = 7;
  const char* const none = "expected a builder that has built a step, has built none";
  EXPECT_FAILS(strata_batch_get_info(builder_, &info), STRATA_INVALID_ARGUMENT, none);
  EXPECT_FAILS(strata_batch_get_tensor(builder_, 0, &view), STRATA_INVALID_ARGUMENT, none);
  EXPECT_FAILS(strata_batch_get_group(builder_, 0, &group), STRATA_INVALID_ARGUMENT, none);
  EXPECT_FAILS(strata_batch_prefill_chunks(builder_, 1, nullptr, 0, &value), STRATA_INVALID_ARGUMENT, none);
  ASSERT_DONE(build());
  EXPECT_FAILS(strata_batch_get_info(builder_, nullptr), STRATA_INVALID_ARGUMENT, "info: expected a strata_batch_info, is null");
  EXPECT_FAILS(strata_batch_get_tensor(builder_, 0, nullptr), STRATA_INVALID_ARGUMENT, "view: expected a pointer, is null");
  EXPECT_FAILS(strata_batch_get_tensor(builder_, 17, &view), STRATA_INVALID_ARGUMENT, "tensor: expected an enumerator, 0 to 16, is 17");
  EXPECT_FAILS(strata_batch_get_tensor(builder_, -1, &view), STRATA_INVALID_ARGUMENT, "tensor: expected an enumerator, 0 to 16, is -1");
  EXPECT_FAILS(strata_batch_get_group(builder_, 0, nullptr), STRATA_INVALID_ARGUMENT,
               "metadata: expected a strata_group_metadata, is null");
  EXPECT_FAILS(strata_batch_get_group(builder_, 9, &group), STRATA_INVALID_ARGUMENT, "group: expected an enumerator");
  EXPECT_FAILS(strata_batch_prefill_chunks(builder_, 3, nullptr, 0, &value), STRATA_INVALID_ARGUMENT, "ratio");
  EXPECT_FAILS(strata_batch_prefill_chunks(builder_, 1, nullptr, 1, &value), STRATA_INVALID_ARGUMENT, "chunks: expected an array of 1");
  EXPECT_FAILS(strata_batch_builder_allocated_bytes(builder_, nullptr), STRATA_INVALID_ARGUMENT, "bytes: expected a pointer, is null");
  info.struct_size = group.struct_size = 2;
  EXPECT_FAILS(strata_batch_get_info(builder_, &info), STRATA_INVALID_ARGUMENT, "strata_batch_info: struct_size must be");
  EXPECT_FAILS(strata_batch_get_group(builder_, 0, &group), STRATA_INVALID_ARGUMENT, "strata_group_metadata: struct_size must be");
  EXPECT_EQ(info.num_tokens, 0);
  EXPECT_EQ(view.rank, 0);
  EXPECT_EQ(value, 7);
}

TEST_F(CBatch, DestroyedHandles) {
  const strata_batch_builder gone = builder_.reset();
  strata_batch_info info = strata_batch_info_default();
  strata_tensor_view view{};
  strata_group_metadata group = strata_group_metadata_default();
  int64_t value = 0;
  EXPECT_FAILS(strata_batch_build(gone, nullptr, 0, nullptr, {}), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_batch_get_info(gone, &info), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_batch_get_tensor(gone, 0, &view), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_batch_get_group(gone, 0, &group), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_batch_prefill_chunks(gone, 1, nullptr, 0, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_batch_builder_allocated_bytes(gone, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_batch_builder_destroy(gone), STRATA_INVALID_HANDLE, "which is destroyed");
}

}  // namespace
}  // namespace strata
