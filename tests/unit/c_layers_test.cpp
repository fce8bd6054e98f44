// Layers and communicators of the C API: forwards, callbacks, lifetimes, and every wrong use.
#include "c_calls.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "strata/attention.h"
#include "test_data.h"

namespace strata {
namespace {

using test::OwnedBuilder;
using test::OwnedCDevice;
using test::OwnedCheckpoint;
using test::OwnedCommunicator;
using test::OwnedConfig;
using test::OwnedLayer;
using test::OwnedPool;
using test::OwnedSideStreams;
using test::OwnedTables;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// One layer of a recorded model with its caches, and a step of one request, ready to run.
class CLayer : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 20;

  explicit CLayer(const char* model = "mla_v32") {
    EXPECT_DONE(strata_checkpoint_open(test::golden_folder(model).c_str(), nullptr, &checkpoint_));
    limits_.max_num_batched_tokens = 64;
    limits_.max_num_seqs = 2;
    limits_.max_model_len = 256;
    options_.limits = &limits_;
    EXPECT_DONE(strata_rope_tables_create(device_, 256, &tables_));
    params_.checkpoint = checkpoint_;
    params_.device = device_;
    params_.options = &options_;
    params_.rope_tables = tables_;
    EXPECT_DONE(strata_layer_create(&params_, &layer_));
    EXPECT_DONE(strata_layer_get_info(layer_, &info_));
    make_caches();
    make_args();
  }
  void make_caches() {
    std::array<strata_cache_group_spec, STRATA_NUM_CACHE_GROUPS> specs{};
    specs[0] = strata_cache_group_spec_default();
    int64_t count = 0;
    EXPECT_DONE(strata_layer_cache_groups(layer_, specs.data(), std::ssize(specs), &count));
    strata_layer_groups groups = strata_layer_groups_default();
    groups.specs = specs.data();
    groups.num_specs = &count;
    groups.num_layers = 1;
    std::array<int64_t, STRATA_NUM_CACHE_GROUPS> pages{};
    EXPECT_DONE(strata_plan_pages(&groups, &limits_, 0, pages.data(), std::ssize(pages)));
    strata_pool_params pool = strata_pool_params_default();
    pool.layer_groups = &groups;
    pool.pages = pages.data();
    pool.num_groups = std::ssize(pages);
    EXPECT_DONE(strata_pool_create(device_, &pool, &pool_));
    strata_batch_builder_params builder = strata_batch_builder_params_default();
    builder.limits = &limits_;
    builder.pool = pool_;
    EXPECT_DONE(strata_batch_builder_create(device_, &builder, &builder_));
    int32_t extended = 0;
    EXPECT_DONE(strata_pool_add_request(pool_, 41));
    EXPECT_DONE(strata_pool_extend(pool_, 41, 0, kTokens, &extended));
    EXPECT_DONE(build(kTokens));
  }
  strata_status build(int64_t tokens) {
    strata_batch_request request = strata_batch_request_default();
    request.seq_len = request.query_len = tokens;
    request.pool = pool_;
    request.pool_request = 41;
    return strata_batch_build(builder_, &request, 1, nullptr, {});
  }
  static strata_tensor_view view_of(void* data, strata_dtype dtype, std::vector<int64_t> shape) {
    strata_tensor_view view{};
    EXPECT_DONE(strata_tensor_view_contiguous(data, dtype, {}, static_cast<int32_t>(shape.size()), shape.data(), &view));
    return view;
  }
  void make_args() {
    for (size_t i = 0; i < hidden_.size(); ++i) hidden_[i] = static_cast<uint16_t>(0x3F00 + i % 251);
    EXPECT_DONE(strata_device_allocate(device_, info_.workspace_bytes, &workspace_));
    args_.batch = builder_;
    args_.pool = pool_;
    args_.hidden = view_of(hidden_.data(), STRATA_BF16, {kTokens, 256});
    args_.out = view_of(out_.data(), STRATA_BF16, {kTokens, 256});
    args_.topk_indices = view_of(topk_.data(), STRATA_I32, {64, 32});
    args_.workspace = workspace_;
    args_.workspace_bytes = info_.workspace_bytes;
  }
  ~CLayer() override { EXPECT_DONE(strata_device_deallocate(device_, workspace_)); }
  strata_status forward() {
    out_.fill(0x7777);
    return strata_layer_forward(layer_, &args_);
  }
  template <class Change>
  void refused(Change&& change, strata_status status, const char* part) {
    const strata_forward_args valid = args_;
    change(args_);
    EXPECT_FAILS(forward(), status, part);
    EXPECT_THAT(out_, Each(0x7777)) << "nothing is written: " << part;
    args_ = valid;
  }

  const OwnedCDevice device_ = test::open_c_device();
  OwnedCheckpoint checkpoint_;
  strata_batch_limits limits_ = strata_batch_limits_default();
  strata_layer_options options_ = strata_layer_options_default();
  OwnedTables tables_;
  strata_layer_params params_ = strata_layer_params_default();
  OwnedLayer layer_;
  strata_layer_info info_ = strata_layer_info_default();
  OwnedPool pool_;
  OwnedBuilder builder_;
  alignas(256) std::array<uint16_t, 64 * 256> hidden_{};
  alignas(256) std::array<uint16_t, 64 * 256> out_{};
  alignas(256) std::array<int32_t, 64 * 32> topk_{};
  void* workspace_ = nullptr;
  strata_forward_args args_ = strata_forward_args_default();
};

TEST_F(CLayer, InfoIsTheCxxLayers) {
  const auto device = open_device({});
  const Checkpoint checkpoint(test::golden_folder("mla_v32"));
  LayerOptions options;
  options.limits = {.max_num_batched_tokens = 64, .max_num_seqs = 2, .max_model_len = 256};
  const OpSet ops = default_ops();
  const auto want = default_layers().make({.checkpoint = checkpoint,
                                           .layer = 0,
                                           .device = device,
                                           .ops = ops,
                                           .options = options,
                                           .rope_tables = std::make_shared<RopeTables>(device, 256)});
  EXPECT_EQ(info_.layer_index, 0);
  EXPECT_EQ(info_.kind, want->kind());
  EXPECT_EQ(info_.compress_ratio, want->compress_ratio());
  EXPECT_EQ(info_.hidden_size, want->hidden_size());
  EXPECT_EQ(info_.num_heads, want->num_heads());
  EXPECT_EQ(info_.index_topk, want->index_topk());
  EXPECT_EQ(info_.weight_bytes, want->weight_bytes());
  EXPECT_EQ(info_.workspace_bytes, want->workspace_bytes());
  int64_t count = 0;
  EXPECT_DONE(strata_layer_cache_groups(layer_, nullptr, 0, &count));
  EXPECT_EQ(count, std::ssize(want->cache_groups()));
}

TEST_F(CLayer, EveryOptionReachesTheLayer) {
  const OwnedConfig config = test::c_preset("v4-tiny");
  const ModelConfig cxx = preset("v4-tiny");
  // Each option alone is refused, or changes the groups, as in C++.
  const auto compare = [&](auto&& change_c, auto&& change_cxx) {
    strata_layer_options options = strata_layer_options_default();
    options.limits = &limits_;
    LayerOptions want;
    want.limits = {.max_num_batched_tokens = 64, .max_num_seqs = 2, .max_model_len = 256};
    change_c(options);
    change_cxx(want);
    std::array<strata_cache_group_spec, STRATA_NUM_CACHE_GROUPS> specs{};
    specs[0] = strata_cache_group_spec_default();
    int64_t count = 0;
    std::string error;
    std::vector<CacheGroupSpec> groups;
    try {
      groups = cache_groups_of_layer(cxx, want, 2);
    } catch (const Error& e) {
      error = e.what();
    }
    const strata_status status = strata_cache_groups_of_layer(config, &options, 2, specs.data(), std::ssize(specs), &count);
    EXPECT_EQ(status == STRATA_OK, error.empty()) << error;
    if (status != STRATA_OK) {
      EXPECT_EQ(strata_last_error(), error);
      return;
    }
    ASSERT_EQ(count, std::ssize(groups));
    for (size_t i = 0; i < groups.size(); ++i) {
      EXPECT_EQ(specs[i].format, static_cast<int32_t>(groups[i].format));
      EXPECT_EQ(specs[i].num_query_heads, groups[i].num_query_heads);
    }
  };
  compare([](auto&) {}, [](auto&) {});
  compare([](auto& o) { o.kv_format = STRATA_KV_BF16; }, [](auto& o) { o.kv_format = KvFormat::bf16; });
  compare([](auto& o) { o.kv_format = STRATA_KV_STATE_F32; }, [](auto& o) { o.kv_format = KvFormat::state_f32; });
  compare([](auto& o) { o.indexer_format = STRATA_INDEXER_MXFP4; }, [](auto& o) { o.indexer_format = IndexerFormat::mxfp4; });
  compare([](auto& o) { o.mla_mode = STRATA_MLA_MHA; }, [](auto& o) { o.mla_mode = MlaMode::mha; });
  compare([](auto& o) { o.context_chunk_rows = -1; }, [](auto& o) { o.context_chunk_rows = -1; });
  compare([](auto& o) { o.kv_scale_ue8m0 = 1; }, [](auto& o) { o.kv_scale_ue8m0 = true; });
  compare([](auto& o) { o.rotary_embedding = 0; }, [](auto& o) { o.rotary_embedding = false; });
  compare([](auto& o) { o.hadamard = 1; }, [](auto& o) { o.hadamard = true; });
  compare([](auto& o) { o.fp8_output = 1; }, [](auto& o) { o.fp8_output = true; });
  compare([](auto& o) { o.tp_size = 2, o.tp_rank = 1; }, [](auto& o) { o.tp_size = 2, o.tp_rank = 1; });
  compare([](auto& o) { o.tp_rank = 1; }, [](auto& o) { o.tp_rank = 1; });
}

TEST_F(CLayer, WrongOptions) {
  const OwnedConfig config = test::c_preset("v4-tiny");
  int64_t count = 7;
  const auto groups = [&](const strata_layer_options* options) {
    return strata_cache_groups_of_layer(config, options, 0, nullptr, 0, &count);
  };
  const auto wrong = [&](auto&& change, const char* part) {
    strata_layer_options options = options_;
    change(options);
    EXPECT_FAILS(groups(&options), STRATA_INVALID_ARGUMENT, part);
  };
  EXPECT_FAILS(groups(nullptr), STRATA_INVALID_ARGUMENT, "options: expected a strata_layer_options, is null");
  wrong([](auto& o) { o.limits = nullptr; }, "options.limits: expected a strata_batch_limits, is null");
  wrong([](auto& o) { o.kv_format = -2; }, "options.kv_format (-1: the family's default): expected an enumerator, 0 to 6, is -2");
  wrong([](auto& o) { o.kv_format = 7; }, "options.kv_format (-1: the family's default): expected an enumerator, 0 to 6, is 7");
  wrong([](auto& o) { o.indexer_format = 3; }, "options.indexer_format: expected an enumerator, 0 to 2, is 3");
  wrong([](auto& o) { o.prefill_mode = -1; }, "options.prefill_mode: expected an enumerator, 0 to 2, is -1");
  wrong([](auto& o) { o.mla_mode = 3; }, "options.mla_mode: expected an enumerator, 0 to 2, is 3");
  wrong([](auto& o) { o.hadamard = 2; }, "options.hadamard: expected 0 or 1, is 2");
  wrong([](auto& o) { o.fp8_output = 2; }, "options.fp8_output: expected 0 or 1, is 2");
  wrong([](auto& o) { o.quantize_activations = 2; }, "options.quantize_activations: expected 0 or 1, is 2");
  wrong([](auto& o) { o.kv_scale_ue8m0 = 2; }, "options.kv_scale_ue8m0: expected 0 or 1, is 2");
  wrong([](auto& o) { o.rotary_embedding = 2; }, "options.rotary_embedding: expected 0 or 1, is 2");
  wrong([](auto& o) { o.batch_invariant = -1; }, "options.batch_invariant: expected 0 or 1, is -1");
  wrong([](auto& o) { o.tp_size = 0; }, "tp_size must be at least 1, is 0");
  test::expect_versions_refused(options_, "strata_layer_options", groups);
  EXPECT_FAILS(strata_cache_groups_of_layer(config, &options_, 99, nullptr, 0, &count), STRATA_INVALID_ARGUMENT, "layer must be in [0, ");
  EXPECT_FAILS(strata_cache_groups_of_layer({}, &options_, 0, nullptr, 0, &count), STRATA_INVALID_HANDLE, "strata_model_config, is null");
  EXPECT_FAILS(strata_cache_groups_of_layer(config, &options_, 0, nullptr, 4, nullptr), STRATA_INVALID_ARGUMENT,
               "specs: expected an array");
}

TEST_F(CLayer, WrongParams) {
  const auto create = [&](const strata_layer_params* params) {
    OwnedLayer layer;
    const strata_status status = strata_layer_create(params, &layer);
    if (status != STRATA_OK) {
      EXPECT_EQ(strata_layer(layer).value, 0u);
    }
    return status;
  };
  const auto wrong = [&](auto&& change, strata_status status, const char* part) {
    strata_layer_params params = params_;
    change(params);
    EXPECT_FAILS(create(&params), status, part);
  };
  EXPECT_FAILS(create(nullptr), STRATA_INVALID_ARGUMENT, "params: expected a strata_layer_params, is null");
  EXPECT_FAILS(strata_layer_create(&params_, nullptr), STRATA_INVALID_ARGUMENT, "layer: expected a pointer, is null");
  wrong([](auto& p) { p.checkpoint = {}; }, STRATA_INVALID_HANDLE, "expected a handle of strata_checkpoint, is null");
  wrong([](auto& p) { p.device = {}; }, STRATA_INVALID_HANDLE, "expected a handle of strata_device, is null");
  wrong([](auto& p) { p.rope_tables = {}; }, STRATA_INVALID_HANDLE, "expected a handle of strata_rope_tables, is null");
  wrong([&](auto& p) { p.communicator = {strata_device(device_).value}; }, STRATA_INVALID_HANDLE, "which is a strata_device");
  wrong([&](auto& p) { p.side_streams = {strata_device(device_).value}; }, STRATA_INVALID_HANDLE, "which is a strata_device");
  wrong([](auto& p) { p.options = nullptr; }, STRATA_INVALID_ARGUMENT, "options: expected a strata_layer_options, is null");
  wrong([](auto& p) { p.layer = 1; }, STRATA_INVALID_ARGUMENT, "layer must be in [0, 1)");
  wrong([](auto& p) { p.layer = -1; }, STRATA_INVALID_ARGUMENT, "layer must be in [0, 1)");
  OwnedTables small;
  ASSERT_DONE(strata_rope_tables_create(device_, 100, &small));
  wrong([&](auto& p) { p.rope_tables = small; }, STRATA_INVALID_ARGUMENT, "rope_tables must have max_model_len 256 rows, have 100");
  OwnedCommunicator single;
  ASSERT_DONE(strata_communicator_single(&single));
  strata_layer_options of_two = options_;
  of_two.tp_size = 2;
  wrong([&](auto& p) { p.options = &of_two, p.communicator = single; }, STRATA_INVALID_ARGUMENT,
        "communicator must be of tp_rank 0 of tp_size 2, is of 0 of 1");
  // A checkpoint without the layer's weights.
  OwnedConfig config;
  OwnedCheckpoint empty;
  ASSERT_DONE(strata_checkpoint_get_config(checkpoint_, &config));
  ASSERT_DONE(strata_checkpoint_create(config, nullptr, 0, &empty));
  wrong([&](auto& p) { p.checkpoint = empty; }, STRATA_INVALID_FILE, "is missing; tried");
  test::expect_versions_refused(params_, "strata_layer_params", create);
}

TEST_F(CLayer, ForwardsAreRepeatable) {
  ASSERT_DONE(forward());
  const auto first = out_;
  EXPECT_NE(first[0], 0x7777);
  ASSERT_DONE(forward());
  EXPECT_EQ(out_, first);
  // The engine's own list of caches gives the same bits.
  std::array<strata_paged_cache, STRATA_NUM_CACHE_GROUPS> caches{};
  std::array<const strata_paged_cache*, STRATA_NUM_CACHE_GROUPS> pointers{};
  for (int32_t g = 0; g < STRATA_NUM_CACHE_GROUPS; ++g) {
    const auto i = static_cast<size_t>(g);
    caches[i] = strata_paged_cache_default();
    ASSERT_DONE(strata_pool_cache(pool_, 0, g, &caches[i]));
    pointers[i] = caches[i].page_size > 0 ? &caches[i] : nullptr;
  }
  args_.pool = {};
  args_.caches = pointers.data();
  args_.num_caches = STRATA_NUM_CACHE_GROUPS;
  ASSERT_DONE(forward());
  EXPECT_EQ(out_, first);
  refused([](auto& a) { a.num_caches = 3; }, STRATA_INVALID_ARGUMENT, "mla_latent");
  refused([](auto& a) { a.num_caches = -1; }, STRATA_INVALID_ARGUMENT, "number of args.caches: expected at least 0, is -1");
  refused([](auto& a) { a.caches = nullptr; }, STRATA_INVALID_ARGUMENT, "args.caches: expected an array of 9, is null");
  caches[STRATA_GROUP_MLA_LATENT].format = 12;
  refused([](auto&) {}, STRATA_INVALID_ARGUMENT, "args.caches: expected an enumerator, 0 to 6, is 12");
  caches[STRATA_GROUP_MLA_LATENT].format = STRATA_KV_FP8_TENSOR;
  refused([](auto&) {}, STRATA_INVALID_ARGUMENT, "mla_latent");
  caches[STRATA_GROUP_MLA_LATENT].format = STRATA_KV_BF16;
  caches[STRATA_GROUP_MLA_LATENT].device = {STRATA_CUDA, 0};
  refused([](auto&) {}, STRATA_INVALID_ARGUMENT, "mla_latent");
  caches[STRATA_GROUP_MLA_LATENT].device = {};
  caches[STRATA_GROUP_MLA_LATENT].struct_size = 9;
  refused([](auto&) {}, STRATA_INVALID_ARGUMENT, "strata_paged_cache: struct_size must be");
}

TEST_F(CLayer, WrongForwards) {
  EXPECT_FAILS(strata_layer_forward(layer_, nullptr), STRATA_INVALID_ARGUMENT, "args: expected a strata_forward_args, is null");
  refused([](auto& a) { a.batch = {}; }, STRATA_INVALID_ARGUMENT, "batch is required, is null");
  refused([](auto& a) { a.batch.value = 5; }, STRATA_INVALID_HANDLE, "expected a handle of strata_batch_builder");
  refused([](auto& a) { a.dummy_run = 1; }, STRATA_INVALID_ARGUMENT, "batch must be null in a dummy run");
  refused([](auto& a) { a.dummy_run = 2; }, STRATA_INVALID_ARGUMENT, "args.dummy_run: expected 0 or 1, is 2");
  refused([](auto& a) { a.skip_topk = 2; }, STRATA_INVALID_ARGUMENT, "args.skip_topk: expected 0 or 1, is 2");
  refused([](auto& a) { a.pool.value = 5; }, STRATA_INVALID_HANDLE, "expected a handle of strata_pool");
  refused([](auto& a) { a.pool = {}; }, STRATA_INVALID_ARGUMENT, "mla_latent");
  refused([](auto& a) { a.pool_layer = 1; }, STRATA_INVALID_ARGUMENT, "layer must be in [0, 1), is 1");
  refused([](auto& a) { a.num_caches = 1; }, STRATA_INVALID_ARGUMENT, "expected a pool or caches, has both");
  refused([](auto& a) { a.stream.value = 5; }, STRATA_INVALID_HANDLE, "expected a handle of strata_stream");
  const auto view_refused = [&](auto&& view, const char* name) {
    SCOPED_TRACE(name);
    refused([&](auto& a) { view(a) = {}; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).data = nullptr; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).dtype = STRATA_F32; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).dtype = 99; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).rank = 5; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).rank = -1; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).rank = 1; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).shape[0] = -1; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).shape[0] = 3; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).shape[1] = 31; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).stride[1] = 2; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).stride[0] = -1; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).device.kind = STRATA_CUDA; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).device.kind = 7; }, STRATA_INVALID_ARGUMENT, name);
    refused([&](auto& a) { view(a).data = static_cast<char*>(view(a).data) + 1; }, STRATA_INVALID_ARGUMENT, name);
  };
  view_refused([](auto& a) -> strata_tensor_view& { return a.hidden; }, "hidden");
  view_refused([](auto& a) -> strata_tensor_view& { return a.out; }, "out");
  view_refused([](auto& a) -> strata_tensor_view& { return a.topk_indices; }, "topk_indices");
  refused([&](auto& a) { a.q_tap = a.hidden; }, STRATA_INVALID_ARGUMENT, "q_tap");
  refused([&](auto& a) { a.attn_out_tap = a.hidden; }, STRATA_INVALID_ARGUMENT, "attn_out_tap");
  refused([&](auto& a) { a.llama_4_scaling = a.hidden; }, STRATA_INVALID_ARGUMENT, "llama_4_scaling");
  refused([&](auto& a) { a.out.data = static_cast<char*>(a.hidden.data) + 512; }, STRATA_INVALID_ARGUMENT,
          "out must be hidden itself or not");
  refused([](auto& a) { a.workspace = nullptr; }, STRATA_WORKSPACE_TOO_SMALL, "workspace");
  refused([](auto& a) { --a.workspace_bytes; }, STRATA_WORKSPACE_TOO_SMALL, "workspace");
  refused([](auto& a) { a.workspace_bytes = -1; }, STRATA_WORKSPACE_TOO_SMALL, "workspace");
  refused([](auto& a) { a.workspace = static_cast<char*>(a.workspace) + 8; }, STRATA_INVALID_ARGUMENT, "workspace");
  test::expect_versions_refused(args_, "strata_forward_args",
                                [&](const strata_forward_args* a) { return strata_layer_forward(layer_, a); });
  // A batch of other tokens, one that was never built, and one of a destroyed builder.
  ASSERT_DONE(build(kTokens - 1));
  refused([](auto&) {}, STRATA_INVALID_ARGUMENT, "hidden must have the batch's 19 rows, has 20");
  EXPECT_THAT(strata_last_error(), StartsWith("layer 0 (mla_sparse): "));
  OwnedBuilder unused;
  strata_batch_builder_params builder = strata_batch_builder_params_default();
  builder.limits = &limits_;
  builder.pool = pool_;
  ASSERT_DONE(strata_batch_builder_create(device_, &builder, &unused));
  refused([&](auto& a) { a.batch = unused; }, STRATA_INVALID_ARGUMENT, "has built none");
  refused([&](auto& a) { a.batch = unused.reset(); }, STRATA_INVALID_HANDLE, "which is destroyed");
}

TEST_F(CLayer, DummyRunsWriteZeros) {
  args_.batch = {};
  args_.pool = {};
  args_.dummy_run = 1;
  ASSERT_DONE(forward());
  EXPECT_TRUE(std::all_of(out_.begin(), out_.begin() + kTokens * 256, [](uint16_t v) { return v == 0; }));
}

// Objects may be destroyed in any order: a layer keeps what it was made from.
TEST_F(CLayer, KeepsWhatItNeeds) {
  ASSERT_DONE(forward());
  const auto first = out_;
  checkpoint_.reset();
  tables_.reset();
  ASSERT_DONE(forward());
  EXPECT_EQ(out_, first);
  pool_.reset();
  refused([](auto&) {}, STRATA_INVALID_HANDLE, "which is destroyed");
}

TEST_F(CLayer, DestroyedHandles) {
  const strata_layer gone = layer_.reset();
  strata_layer_info info = strata_layer_info_default();
  EXPECT_FAILS(strata_layer_forward(gone, &args_), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_layer_get_info(gone, &info), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_layer_cache_groups(gone, nullptr, 0, nullptr), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_layer_destroy(gone), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_layer_get_info({}, &info), STRATA_INVALID_HANDLE, "expected a handle of strata_layer, is null");
  info.struct_size = 7;
  EXPECT_FAILS(strata_layer_get_info({}, &info), STRATA_INVALID_ARGUMENT, "strata_layer_info: struct_size must be");
  EXPECT_FAILS(strata_layer_get_info({}, nullptr), STRATA_INVALID_ARGUMENT, "info: expected a strata_layer_info, is null");
}

// A handle that another thread destroys during a forward: that forward ends well, later ones are refused.
TEST_F(CLayer, DestroyedByAnotherThreadDuringForwards) {
  std::atomic<bool> started{false};
  std::atomic<int> refusals{0};
  std::thread runs([&] {
    for (int i = 0; i < 2000 && refusals < 3; ++i) {
      const strata_status status = strata_layer_forward(layer_, &args_);
      started = true;
      if (status == STRATA_OK) continue;
      EXPECT_EQ(status, STRATA_INVALID_HANDLE) << strata_last_error();
      ++refusals;
    }
  });
  while (!started) std::this_thread::yield();
  const strata_layer layer = layer_;
  EXPECT_DONE(strata_batch_builder_destroy(builder_));
  EXPECT_DONE(strata_pool_destroy(pool_));
  EXPECT_DONE(strata_layer_destroy(layer));
  runs.join();
  EXPECT_EQ(refusals, 3);
  *&builder_ = {};
  *&pool_ = {};
  *&layer_ = {};
}

// What a communicator's functions saw.
struct Calls {
  int64_t sums = 0;
  int64_t destroyed = 0;
  int64_t rows = 0;
  strata_status status = STRATA_OK;
  bool fails_a_call = false;
};
strata_communicator_callbacks callbacks_of(Calls& calls) {
  strata_communicator_callbacks callbacks = strata_communicator_callbacks_default();
  callbacks.user = &calls;
  callbacks.all_reduce_sum = [](void* user, const strata_tensor_view* tensor, strata_device_id device, void* native_stream) {
    Calls& c = *static_cast<Calls*>(user);
    ++c.sums;
    c.rows = tensor->shape[0];
    EXPECT_EQ(device.kind, STRATA_CPU);
    EXPECT_EQ(tensor->device.kind, STRATA_CPU);
    EXPECT_EQ(native_stream, nullptr);
    if (c.fails_a_call) return strata_device_close({5});
    return c.status;
  };
  callbacks.destroy = [](void* user) { ++static_cast<Calls*>(user)->destroyed; };
  return callbacks;
}

TEST_F(CLayer, CallbacksOfACommunicator) {
  Calls calls;
  const strata_communicator_callbacks callbacks = callbacks_of(calls);
  OwnedCommunicator communicator;
  ASSERT_DONE(strata_communicator_create(&callbacks, &communicator));
  int32_t value = 7;
  EXPECT_DONE(strata_communicator_rank(communicator, &value));
  EXPECT_EQ(value, 0);
  EXPECT_DONE(strata_communicator_size(communicator, &value));
  EXPECT_EQ(value, 1);
  params_.communicator = communicator;
  layer_.reset();
  ASSERT_DONE(strata_layer_create(&params_, &layer_));
  communicator.reset();
  EXPECT_EQ(calls.destroyed, 0) << "the layer keeps it";
  ASSERT_DONE(forward());
  EXPECT_EQ(calls.sums, 1);
  EXPECT_EQ(calls.rows, kTokens);
  args_.batch = {};
  args_.dummy_run = 1;
  ASSERT_DONE(forward());
  EXPECT_EQ(calls.sums, 2) << "in dummy runs too";
  args_.batch = builder_;
  args_.dummy_run = 0;

  calls.status = STRATA_DEVICE_FAILURE;
  EXPECT_FAILS(forward(), STRATA_DEVICE_FAILURE, "layer 0 (mla_sparse), requests 41: all_reduce_sum of the caller returned 6");
  calls.status = 77;
  EXPECT_FAILS(forward(), 77, "all_reduce_sum of the caller returned 77 (unknown status)");
  calls.fails_a_call = true;
  EXPECT_FAILS(forward(), STRATA_INVALID_HANDLE, "all_reduce_sum of the caller returned 7 (STRATA_INVALID_HANDLE): expected a handle");
  calls.fails_a_call = false;
  calls.status = STRATA_OK;
  EXPECT_DONE(forward());
  layer_.reset();
  EXPECT_EQ(calls.destroyed, 1);
}

TEST(CCommunicator, WrongUse) {
  Calls calls;
  const auto create = [&](const strata_communicator_callbacks* callbacks) {
    OwnedCommunicator communicator;
    const strata_status status = strata_communicator_create(callbacks, &communicator);
    if (status != STRATA_OK) {
      EXPECT_EQ(strata_communicator(communicator).value, 0u);
    }
    return status;
  };
  const auto wrong = [&](auto&& change, const char* part) {
    strata_communicator_callbacks callbacks = callbacks_of(calls);
    change(callbacks);
    EXPECT_FAILS(create(&callbacks), STRATA_INVALID_ARGUMENT, part);
  };
  EXPECT_FAILS(create(nullptr), STRATA_INVALID_ARGUMENT, "callbacks: expected a strata_communicator_callbacks, is null");
  wrong([](auto& c) { c.size = 0; }, "callbacks.size: expected at least 1, is 0");
  wrong([](auto& c) { c.rank = 1; }, "callbacks.rank: expected 0 to 0, is 1");
  wrong([](auto& c) { c.rank = -1; }, "callbacks.rank: expected 0 to 0, is -1");
  wrong([](auto& c) { c.all_reduce_sum = nullptr; }, "callbacks.all_reduce_sum: expected a function, is null");
  const strata_communicator_callbacks valid = callbacks_of(calls);
  EXPECT_FAILS(strata_communicator_create(&valid, nullptr), STRATA_INVALID_ARGUMENT, "communicator: expected a pointer, is null");
  EXPECT_EQ(calls.destroyed, 0) << "not where creating fails";
  test::expect_versions_refused(valid, "strata_communicator_callbacks", create);
  EXPECT_EQ(calls.destroyed, 1) << "of the struct of a later release";
  EXPECT_FAILS(strata_communicator_single(nullptr), STRATA_INVALID_ARGUMENT, "communicator: expected a pointer, is null");
  OwnedCommunicator single;
  int32_t value = 7;
  ASSERT_DONE(strata_communicator_single(&single));
  EXPECT_FAILS(strata_communicator_rank(single, nullptr), STRATA_INVALID_ARGUMENT, "rank: expected a pointer, is null");
  EXPECT_FAILS(strata_communicator_size(single, nullptr), STRATA_INVALID_ARGUMENT, "size: expected a pointer, is null");
  const strata_communicator gone = single.reset();
  EXPECT_FAILS(strata_communicator_rank(gone, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_communicator_size(gone, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_communicator_destroy(gone), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_EQ(value, 7);
}

TEST(CRopeTables, AreTheCxxTables) {
  const OwnedCDevice device = test::open_c_device();
  OwnedTables tables;
  ASSERT_DONE(strata_rope_tables_create(device, 100, &tables));
  RopeTables want(open_device({}), 100);
  const OwnedConfig config = test::c_preset("v4-tiny");
  strata_tensor_view view{};
  ASSERT_DONE(strata_rope_tables_get(tables, config, 2, &view));
  const TensorView table = want.get(preset("v4-tiny").rope(2));
  ASSERT_EQ(view.shape[0], 100);
  ASSERT_EQ(view.shape[1], table.shape[1]);
  EXPECT_EQ(std::memcmp(view.data, table.data, static_cast<size_t>(table.bytes())), 0);
  ASSERT_DONE(strata_rope_tables_numbers(tables, &view));
  EXPECT_EQ(view.shape[0], 101);
  EXPECT_EQ(static_cast<const int32_t*>(view.data)[77], 77);
  (void)want.numbers();
  int64_t bytes = 0;
  EXPECT_DONE(strata_rope_tables_allocated_bytes(tables, &bytes));
  EXPECT_EQ(bytes, want.allocated_bytes());

  EXPECT_FAILS(strata_rope_tables_create(device, 100, nullptr), STRATA_INVALID_ARGUMENT, "tables: expected a pointer, is null");
  OwnedTables other;
  EXPECT_FAILS(strata_rope_tables_create(device, 0, &other), STRATA_INVALID_ARGUMENT, "max_positions must be in [1, 2^24], is 0");
  EXPECT_FAILS(strata_rope_tables_create({}, 1, &other), STRATA_INVALID_HANDLE, "strata_device, is null");
  view.rank = 77;
  EXPECT_FAILS(strata_rope_tables_get(tables, config, -1, &view), STRATA_INVALID_ARGUMENT, "layer must be in [0, ");
  EXPECT_FAILS(strata_rope_tables_get(tables, {}, 0, &view), STRATA_INVALID_HANDLE, "strata_model_config, is null");
  EXPECT_FAILS(strata_rope_tables_get(tables, config, 0, nullptr), STRATA_INVALID_ARGUMENT, "table: expected a pointer, is null");
  EXPECT_FAILS(strata_rope_tables_numbers(tables, nullptr), STRATA_INVALID_ARGUMENT, "numbers: expected a pointer, is null");
  EXPECT_FAILS(strata_rope_tables_allocated_bytes(tables, nullptr), STRATA_INVALID_ARGUMENT, "bytes: expected a pointer, is null");
  const strata_rope_tables gone = tables.reset();
  EXPECT_FAILS(strata_rope_tables_get(gone, config, 0, &view), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_rope_tables_numbers(gone, &view), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_rope_tables_allocated_bytes(gone, &bytes), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_rope_tables_destroy(gone), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_EQ(view.rank, 77);
}

TEST(CSideStreams, OfACpuAreNotConcurrent) {
  const OwnedCDevice device = test::open_c_device();
  OwnedSideStreams streams;
  ASSERT_DONE(strata_side_streams_create(device, &streams));
  int32_t concurrent = 7;
  EXPECT_FAILS(strata_side_streams_concurrent(streams, nullptr), STRATA_INVALID_ARGUMENT, "concurrent: expected a pointer, is null");
  EXPECT_DONE(strata_side_streams_concurrent(streams, &concurrent));
  EXPECT_EQ(concurrent, 0);
  EXPECT_FAILS(strata_side_streams_create(device, nullptr), STRATA_INVALID_ARGUMENT, "streams: expected a pointer, is null");
  const strata_side_streams gone = streams.reset();
  EXPECT_FAILS(strata_side_streams_concurrent(gone, &concurrent), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_side_streams_destroy(gone), STRATA_INVALID_HANDLE, "which is destroyed");
}

}  // namespace
}  // namespace strata
