// What a layer cannot be made from: refused when it is made, not when the first step has written half of its caches.
#include <functional>

#include "bad_call.h"
#include "core/host_device.h"
#include "mla_model.h"

namespace strata {
namespace {

using test::expect_error;
using test::golden_model;
using test::ModelDirectory;
using test::small_mla;

struct Context {
  explicit Context(const std::string& model) : checkpoint(model) {
    options.limits = {.max_num_batched_tokens = 16, .max_num_seqs = 2, .max_model_len = 64};
  }
  std::unique_ptr<AttentionLayer> make() const {
    return default_layers().make({.checkpoint = checkpoint,
                                  .layer = layer,
                                  .device = device,
                                  .ops = ops,
                                  .options = options,
                                  .rope_tables = tables,
                                  .communicator = communicator,
                                  .side_streams = nullptr});
  }
  Checkpoint checkpoint;
  int64_t layer = 0;
  std::shared_ptr<Device> device = open_device({});
  OpSet ops = default_ops();
  LayerOptions options;
  std::shared_ptr<RopeTables> tables = std::make_shared<RopeTables>(device, 64);
  std::shared_ptr<Communicator> communicator;
};

struct EighthRank final : Communicator {
  int rank() const override { return 7; }
  int size() const override { return 8; }
  void all_reduce_sum(const TensorView&, Device&, Stream) override {}
};

TEST(LayerContext, ForcedNamesThatForceNothing) {
  Context context(golden_model("mla_v3"));
  Config config;
  config.force = {{"sparse_attn_decoder", "reference"}};
  context.device = open_device({}, config);
  context.tables = std::make_shared<RopeTables>(context.device, 64);
  expect_error(ErrorCode::invalid_argument, {"Config::force", "names 'sparse_attn_decoder'"}, [&] { context.make(); });
}

TEST(LayerContext, WhatBothFamiliesNeed) {
  for (const std::string model : {"v4_fp8", "mla_v3"}) {
    SCOPED_TRACE(model);
    const auto refused = [&](const std::vector<std::string>& parts, const std::function<void(Context&)>& spoil) {
      Context context(golden_model(model));
      spoil(context);
      expect_error(ErrorCode::invalid_argument, parts, [&] { context.make(); });
    };
    EXPECT_NO_THROW(Context(golden_model(model)).make());
    refused({"device", "null"}, [](Context& c) { c.device = nullptr; });
    refused({"rope_tables", "null"}, [](Context& c) { c.tables = nullptr; });
    refused({"rope_tables must be on cpu", "opencl:0"}, [](Context& c) {
      c.tables = std::make_shared<RopeTables>(std::make_shared<HostDevice>(DeviceId{DeviceKind::opencl, 0}), 64);
    });
    refused({"communicator", "tp_rank 0 of tp_size 1", "7 of 8"}, [](Context& c) { c.communicator = std::make_shared<EighthRank>(); });
    refused({"max_num_batched_tokens", "[1, 2^31)", "0"}, [](Context& c) { c.options.limits.max_num_batched_tokens = 0; });
    refused({"max_num_batched_tokens", "1125899906842624"}, [](Context& c) { c.options.limits.max_num_batched_tokens = int64_t{1} << 50; });
    refused({"max_num_seqs", "-1"}, [](Context& c) { c.options.limits.max_num_seqs = -1; });
    refused({"num_speculative_tokens", "-5"}, [](Context& c) { c.options.limits.num_speculative_tokens = -5; });
    refused({"tp_rank must be in [0, tp_size = 1)", "is 1"}, [](Context& c) { c.options.tp_rank = 1; });
    refused({"tp_size must be at least 1, is 0"}, [](Context& c) { c.options.tp_size = 0; });
    refused({"indexer_format", "fp8, mxfp4 or none", "77"}, [](Context& c) { c.options.indexer_format = IndexerFormat(77); });
    refused({"prefill_mode", "77"}, [](Context& c) { c.options.prefill_mode = PrefillMode(77); });
    refused({"mla_mode", "77"}, [](Context& c) { c.options.mla_mode = MlaMode(77); });
    refused({"context_chunk_rows", "negative", "-1"}, [](Context& c) { c.options.context_chunk_rows = -1; });
    for (const int64_t layer : {-1, 99}) {
      refused({"layer must be in [0, ", "is " + std::to_string(layer)}, [&](Context& c) { c.layer = layer; });
      expect_error(ErrorCode::invalid_argument, {"layer must be in [0, "},
                   [&] { static_cast<void>(cache_groups_of_layer(ModelConfig::load(golden_model(model)), {}, layer)); });
    }
  }
}

TEST(LayerContext, FormatsThatNoV4CacheHas) {
  for (const KvFormat format : {KvFormat::fp8_ds_mla, KvFormat::state_f32, KvFormat::indexer_fp8}) {
    Context context(golden_model("v4_fp8"));
    context.options.kv_format = format;
    expect_error(ErrorCode::unsupported, {"kv_format", "V4", std::string(to_string(format))}, [&] { context.make(); });
    EXPECT_THROW(cache_groups_of_layer(context.checkpoint.config(), context.options, 0), Error);
  }
}

// What changes results is not passed over where it means nothing; how they are computed may be.
TEST(LayerContext, OptionsOfTheOtherFamily) {
  const auto refused = [](const std::string& model, const std::string& part, const std::function<void(LayerOptions&)>& change) {
    Context context(golden_model(model));
    change(context.options);
    expect_error(ErrorCode::invalid_argument, {part}, [&] { context.make(); });
  };
  refused("v4_fp8", "kv_scale_ue8m0", [](LayerOptions& o) { o.kv_scale_ue8m0 = true; });
  refused("v4_fp8", "rotary_embedding", [](LayerOptions& o) { o.rotary_embedding = false; });
  refused("mla_v3", "fp8_output", [](LayerOptions& o) { o.fp8_output = true; });
  for (const std::string model : {"v4_fp8", "mla_v3"}) {
    Context context(golden_model(model));
    context.options.prefill_mode = PrefillMode::paged;
    context.options.mla_mode = MlaMode::mqa;
    EXPECT_NO_THROW(context.make());
  }
}

// Sizes that one of the attention ops refuses, which runs after the insertion of the step's keys.
TEST(LayerContext, MlaSizesThatNoOpTakes) {
  const auto refused = [](const std::string& golden, const std::string& part, MlaMode mode,
                          const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = small_mla(golden, 2);
    change(config);
    const auto model = test::synthesized(config);
    Context context(model->string());
    context.options.mla_mode = mode;
    expect_error(ErrorCode::unsupported, {part}, [&] { context.make(); });
  };
  using enum MlaMode;
  refused("mla_v3", "kv_lora_rank + qk_rope_head_dim", automatic, [](ModelConfig& c) { c.kv_lora_rank = 1024; });
  refused("mla_v3", "kv_lora_rank + qk_rope_head_dim", mha, [](ModelConfig& c) { c.kv_lora_rank = 2048; });
  refused("mla_v3", "qk_nope_head_dim + qk_rope_head_dim", automatic, [](ModelConfig& c) { c.qk_nope_head_dim = 640; });
  refused("mla_v3", "v_head_dim", mha, [](ModelConfig& c) { c.v_head_dim = 640; });
  refused("mla_v32", "512 or 576", automatic, [](ModelConfig& c) { c.kv_lora_rank = 256; });
  refused("mla_v32", "qk_rope_head_dim", automatic, [](ModelConfig& c) {
    c.qk_rope_head_dim = 256;
    c.kv_lora_rank = 320;
  });
  ModelConfig short_latent = small_mla("mla_v3", 2);
  short_latent.kv_lora_rank = 256;
  const auto short_model = test::synthesized(short_latent);
  Context records(short_model->string());
  records.options.kv_format = KvFormat::fp8_ds_mla;
  expect_error(ErrorCode::unsupported, {"fp8_ds_mla needs kv_lora_rank 512", "has 256"}, [&] { records.make(); });
  // What the other form takes is no hindrance.
  ModelConfig wide = small_mla("mla_v3", 2);
  wide.kv_lora_rank = 1024;
  const auto model = test::synthesized(wide);
  Context context(model->string());
  context.options.mla_mode = mha;
  EXPECT_NO_THROW(context.make());
}

TEST(LayerRegistryErrors, ANameAndAMaker) {
  LayerRegistry registry;
  EXPECT_THROW(registry.register_layer("Mine", nullptr), Error);
  EXPECT_THROW(registry.register_layer("", [](const LayerContext&) { return std::unique_ptr<AttentionLayer>(); }), Error);
  EXPECT_TRUE(registry.names().empty());
}

TEST(LayerRegistryErrors, AnUnknownArchitecture) {
  const Context context(golden_model("mla_v3"));
  LayerRegistry registry;
  registry.register_layer("Mine", [](const LayerContext&) { return std::unique_ptr<AttentionLayer>(); });
  expect_error(ErrorCode::unsupported, {"DeepseekV3ForCausalLM", "known: Mine"}, [&] {
    static_cast<void>(registry.make({.checkpoint = context.checkpoint,
                                     .layer = 0,
                                     .device = context.device,
                                     .ops = context.ops,
                                     .options = context.options,
                                     .rope_tables = context.tables,
                                     .communicator = nullptr,
                                     .side_streams = nullptr}));
  });
}

TEST(RopeTablesTest, RefusesWhatCannotBeAndKeepsWhatItHandedOut) {
  const auto device = open_device({});
  for (const int64_t positions : {int64_t{0}, int64_t{-5}, (int64_t{1} << 24) + 1, int64_t{1} << 40}) {
    EXPECT_THROW(RopeTables(device, positions), Error) << positions;
  }
  EXPECT_THROW(RopeTables(nullptr, 8), Error);
  EXPECT_THROW(SideStreams(nullptr), Error);
  RopeTables tables(device, 8);
  const TensorView& first = tables.get({});
  const void* data = first.data;
  for (int i = 1; i < 20; ++i) static_cast<void>(tables.get({.theta = 10000.0 + i}));
  EXPECT_EQ(first.data, data);
  EXPECT_EQ(tables.get({}).data, data);
}

}  // namespace
}  // namespace strata
