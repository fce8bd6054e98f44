// MLA layers beyond the recorded runs: without a rotary embedding, with llama_4_scaling, requests without tokens, several tokens per decode
// request, short sequences of sparse layers, layers without an indexer.
#include <algorithm>
#include <cstring>
#include <fstream>

#include "mla_model.h"
#include "contracts/row_alignment.h"

namespace strata {
namespace {

using runner::StepRequest;
using test::golden_model;
using test::LayerFixture;
using test::ModelDirectory;
using test::relative_difference;
using test::small_mla;
using test::synthesized;

const std::vector<std::string> kModels{"mla_v2_lite", "mla_v3", "mla_v32"};

std::vector<float> last_token(const std::vector<float>& out) { return {out.end() - 256, out.end()}; }

// Without positions attention is over a set: the last token does not care in which order the earlier ones came.
TEST(MlaRotaryEmbedding, WithoutItOrderDoesNotMatter) {
  for (const std::string model : {"mla_v2_lite", "mla_v3"}) {
    for (const bool rotary : {true, false}) {
      SCOPED_TRACE(model + (rotary ? " with" : " without"));
      LayerOptions options;
      options.rotary_embedding = rotary;
      LayerFixture plain(0, options, nullptr, model), turned(0, options, nullptr, model);
      auto* rows = turned.hidden.view().ptr<Bf16>();
      for (int64_t i = 0; i < 50; ++i) std::swap_ranges(rows + i * 256, rows + (i + 1) * 256, rows + (99 - i) * 256);
      const double difference = relative_difference(last_token(turned.prefill(0, 101)), last_token(plain.prefill(0, 101)));
      if (rotary) {
        EXPECT_GT(difference, 2e-2);
      } else {
        EXPECT_LE(difference, 1e-2);
      }
    }
  }
}

// Rotations keep the length of a query and of every pair in it.
TEST(MlaRotaryEmbedding, TurnsTheRotaryLanesOnly) {
  LayerOptions without;
  without.rotary_embedding = false;
  LayerFixture a(0, {}, nullptr, "mla_v3"), b(0, without, nullptr, "mla_v3");
  const Tensor q_a(a.device, DType::bf16, {60, 4, 192}), q_b(a.device, DType::bf16, {60, 4, 192});
  for (auto [fixture, q] : {std::pair{&a, &q_a}, std::pair{&b, &q_b}}) {
    ForwardArgs extras;
    extras.q_tap = *q;
    fixture->runner->add_request(0);
    fixture->step({{0, 60}}, 0, extras);
  }
  int turned = 0;
  for (int64_t t = 0; t < 60; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      const Bf16 *x = q_a.view().row<Bf16>(t, h), *y = q_b.view().row<Bf16>(t, h);
      ASSERT_EQ(std::memcmp(x, y, 128 * sizeof(Bf16)), 0) << "token " << t;
      for (int64_t i = 128; i < 192; i += 2) {
        ASSERT_NEAR(std::hypot(to_float(x[i]), to_float(x[i + 1])), std::hypot(to_float(y[i]), to_float(y[i + 1])), 0.02);
        turned += x[i].bits != y[i].bits;
      }
    }
  }
  EXPECT_GT(turned, 60 * 4 * 16);
}

// Rows are gathered if the rule requires it, which it never does on a CPU, or if the caller requests it.
TEST(MlaSparsePrefill, OnlyAPlanThatMayGatherHasRoomForRows) {
  const auto workspace = [](PrefillMode mode) {
    LayerOptions options;
    options.prefill_mode = mode;
    options.kv_format = KvFormat::fp8_ds_mla;
    OpSet ops = default_ops();  // with products that need no room, whichever the machine's do: there may be more of it than of rows
    ops.linear.prepend(ops.linear.implementations().back());
    ops.grouped_linear.prepend(ops.grouped_linear.implementations().back());
    LayerFixture fixture(golden_model("mla_v32"), {0}, options, nullptr, ops);
    return static_cast<int64_t>(fixture.runner->layer(0).workspace_bytes());
  };
  const int64_t paged = workspace(PrefillMode::paged);
  EXPECT_EQ(workspace(PrefillMode::automatic), paged);
  EXPECT_GT(workspace(PrefillMode::gathered), paged);
}

// A prompt in the same step is no bound for decode requests: by its length each of them would be planned as if it had as many tokens.
TEST(MlaMixedStep, DecodeRequestsHaveBoundsOfTheirOwn) {
  std::vector<std::pair<int64_t, int64_t>> bounds;  // max_query_len, max_seq_len of every call
  OpSet ops = default_ops();
  Implementation<DenseAttnDecodeParams> noting = ops.dense_attn_decode.implementations().back();
  noting.run = [run = noting.run, &bounds](const DenseAttnDecodeParams& p, const ExecutionContext& context) {
    bounds.emplace_back(p.max_query_len, p.max_seq_len);
    run(p, context);
  };
  ops.dense_attn_decode.prepend(noting);
  LayerOptions options;
  options.limits.num_speculative_tokens = 1;
  LayerFixture fixture(golden_model("mla_v3"), {0}, options, nullptr, ops);
  for (const auto& [id, tokens] : {std::pair{0, 40}, std::pair{1, 60}, std::pair{2, 100}}) fixture.prefill(id, tokens);
  bounds.clear();
  fixture.step({{0, 1}, {1, 2}, {2, 150}});
  fixture.step({{0, 1}, {1, 1}});
  fixture.step({{2, 150}});
  EXPECT_EQ(bounds, (std::vector<std::pair<int64_t, int64_t>>{{2, 62}, {1, 63}}));
}

TEST(MlaLlama4Scaling, MultipliesTheRotatedQueryAndNothingElse) {
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    LayerFixture plain(0, {}, nullptr, model), ones(0, {}, nullptr, model), scaled(0, {}, nullptr, model);
    const Tensor factors(plain.device, DType::f32, {60}), q(plain.device, DType::bf16, {60, 4, 192}),
        q_scaled(plain.device, DType::bf16, {60, 4, 192});
    const auto run = [&](LayerFixture& fixture, bool scale, float size, const Tensor& tap) {
      for (int64_t t = 0; t < 60; ++t) factors.view().ptr<float>()[t] = 1.0f + size * static_cast<float>(t);
      ForwardArgs extras;
      extras.q_tap = tap;
      if (scale) extras.llama_4_scaling = factors;
      fixture.runner->add_request(0);
      return fixture.step({{0, 60}}, 0, extras);
    };
    const std::vector<float> want = run(plain, false, 0, q);
    EXPECT_EQ(run(ones, true, 0.0f, q_scaled), want) << "a factor of 1 changes nothing";
    EXPECT_GT(relative_difference(run(scaled, true, 0.05f, q_scaled), want), 1e-2);
    for (int64_t i = 0; i < 60 * 4 * 192; ++i) {
      const float factor = factors.view().ptr<float>()[i / (4 * 192)];
      ASSERT_EQ(q_scaled.view().ptr<Bf16>()[i].bits, to_bf16(to_float(q.view().ptr<Bf16>()[i]) * factor).bits) << i;
    }
    // Keys are not scaled, and what the indexer selects does not depend on it.
    EXPECT_EQ(test::cache_bytes(scaled.runner->pool()), test::cache_bytes(plain.runner->pool()));
    if (model == "mla_v32") {
      const TensorView a = scaled.runner->topk_indices().slice(0, 60), b = plain.runner->topk_indices().slice(0, 60);
      EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0);
    }
  }
}

// Between, after and before other requests; alone; and as padding of the batch.
TEST(MlaZeroLength, RequestsWithoutTokensCostAndChangeNothing) {
  for (const std::string& model : kModels) {
    for (const MlaMode mode : {MlaMode::automatic, MlaMode::mha, MlaMode::mqa}) {
      if (model == "mla_v32" && mode == MlaMode::mha) continue;
      SCOPED_TRACE(model + " mode " + std::to_string(static_cast<int>(mode)));
      LayerOptions options;
      options.mla_mode = mode;
      LayerFixture plain(0, options, nullptr, model), fixture(0, options, nullptr, model);
      for (LayerFixture* f : {&plain, &fixture}) {
        for (const int64_t id : {1, 2}) f->runner->add_request(id);
      }
      for (const int64_t id : {8, 9}) fixture.runner->add_request(id);
      const auto same = [&](const std::vector<StepRequest>& with, const std::vector<StepRequest>& without, int64_t first) {
        EXPECT_LE(relative_difference(fixture.step(with, first), plain.step(without, first)), 5e-3);
      };
      same({{8, 0}, {1, 70}, {9, 0}, {2, 33}}, {{1, 70}, {2, 33}}, 0);
      same({{1, 1}, {8, 0}, {2, 20}, {9, 0}}, {{1, 1}, {2, 20}}, 110);
      same({{8, 0}, {1, 1}, {2, 1}}, {{1, 1}, {2, 1}}, 140);
      const std::vector<std::byte> before = test::cache_bytes(fixture.runner->pool());
      EXPECT_NO_THROW(fixture.step({{1, 0}, {8, 0}}));
      EXPECT_NO_THROW(fixture.step({}));
      EXPECT_EQ(before, test::cache_bytes(fixture.runner->pool()));
    }
  }
}

// Verification steps of speculative decoding: decode requests with 1 to 4 query tokens, bottom-right causal.
TEST(MlaDecode, SeveralQueryTokensEqualOneByOne) {
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    LayerOptions options;
    options.limits.num_speculative_tokens = 3;
    LayerFixture many(0, options, nullptr, model), one(0, options, nullptr, model);
    for (LayerFixture* f : {&many, &one}) {
      for (const int64_t id : {1, 2}) f->runner->add_request(id);
      f->step({{1, 70}, {2, 40}});
    }
    // Rows 120..123 belong to request 1, 124 and 125 to request 2.
    const std::vector<float> got = many.step({{1, 4}, {2, 2}}, 120);
    std::vector<float> want;
    for (const auto& [id, row] : {std::pair<int64_t, int64_t>{1, 120}, {1, 121}, {1, 122}, {1, 123}, {2, 124}, {2, 125}}) {
      const std::vector<float> token = one.step({{id, 1}}, row);
      want.insert(want.end(), token.begin(), token.end());
    }
    EXPECT_LE(relative_difference(got, want), 5e-3);
  }
}

// The recorded V3.2 model as a V3 model: without what an indexer has.
std::unique_ptr<ModelDirectory> without_indexers() {
  const Checkpoint recorded(golden_model("mla_v32"));
  ModelConfig config = recorded.config();
  config.index_topk = config.index_n_heads = config.index_head_dim = 0;
  config.model_type = "deepseek_v3";
  config.architecture = "DeepseekV3ForCausalLM";
  std::vector<StoredTensor> tensors;
  for (const std::string& name : recorded.names()) {
    if (name.find(".indexer.") == std::string::npos) tensors.push_back(*recorded.find(name));
  }
  auto directory = std::make_unique<ModelDirectory>();
  write_safetensors(directory->path() / "model.safetensors", tensors);
  std::ofstream(directory->path() / "config.json") << config.to_json();
  return directory;
}

// MLA 13: a sequence no longer than top-k selects everything, which is dense causal attention.
TEST(MlaSparse, ShortSequencesAreDense) {
  const auto directory = without_indexers();
  LayerOptions options;
  options.mla_mode = MlaMode::mqa;
  LayerFixture without_indexer(directory->string(), {0}, options), sparse(0, options, nullptr, "mla_v32");
  const std::vector<float> want = without_indexer.prefill(0, 40), got = sparse.prefill(0, 40);
  EXPECT_EQ(sparse.runner->layer(0).kind(), "mla_sparse");
  EXPECT_EQ(without_indexer.runner->layer(0).kind(), "mla");
  const auto first = [](const std::vector<float>& v, int64_t tokens) { return std::vector<float>(v.begin(), v.begin() + tokens * 256); };
  EXPECT_LE(relative_difference(first(got, 32), first(want, 32)), 4e-3);
  EXPECT_GT(relative_difference(last_token(got), last_token(want)), 1e-2) << "token 40 attends to 32 of its keys";
}

// All layers' selections as positions.
std::vector<int32_t> selection(const LayerFixture& fixture, int64_t tokens) {
  const TensorView view = fixture.runner->topk_indices().slice(0, tokens);
  return {view.ptr<int32_t>(), view.ptr<int32_t>() + view.numel()};
}

// MLA 12: a layer without an indexer attends to what the nearest earlier layer with one selected, and leaves the buffer alone.
TEST(MlaSkipTopk, ReproducesTheLeadersSelectionExactly) {
  ModelConfig config = small_mla("mla_v32", 4, 3);
  const auto all_full = synthesized(config);
  config.index_topk_pattern = "FSS";
  const auto shared = synthesized(config);  // the same seed: the same tensors where both have them
  LayerFixture full(all_full->string(), {0, 1, 2}), skipping(shared->string(), {0, 1, 2});
  for (LayerFixture* f : {&full, &skipping}) f->runner->add_request(0);
  for (const auto& [tokens, first] : {std::pair<int64_t, int64_t>{150, 0}, {1, 150}, {1, 151}, {60, 152}}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens from row " << first);
    const StepRequest step[] = {{0, tokens}};
    const TensorView hidden = full.hidden.view().slice(first, tokens), out = full.out.view().slice(0, tokens);
    full.runner->begin_step(step);
    skipping.runner->begin_step(step);
    full.runner->run_layer(0, hidden, out);
    const std::vector<float> leader = full.output(tokens);
    skipping.runner->run_layer(0, hidden, out);
    EXPECT_EQ(full.output(tokens), leader);
    const std::vector<int32_t> chosen = selection(full, tokens);
    EXPECT_EQ(selection(skipping, tokens), chosen);
    for (const size_t layer : {1, 2}) {
      ForwardArgs extras;
      extras.skip_topk = true;
      full.runner->run_layer(layer, hidden, out, extras);  // has an indexer, and the caller turns it off
      const std::vector<float> want = full.output(tokens);
      skipping.runner->run_layer(layer, hidden, out);
      EXPECT_EQ(full.output(tokens), want) << "layer " << layer;
      EXPECT_EQ(selection(skipping, tokens), chosen) << "layer " << layer << " touched the shared buffer";
      EXPECT_EQ(selection(full, tokens), chosen);
    }
    full.runner->end_step();
    skipping.runner->end_step();
  }
  // Layers 1 and 2 would have selected otherwise: the comparison above means something.
  const StepRequest step[] = {{0, 30}};
  const TensorView hidden = full.hidden.view().slice(220, 30), out = full.out.view().slice(0, 30);
  full.runner->begin_step(step);
  full.runner->run_layer(0, hidden, out);
  const std::vector<int32_t> chosen = selection(full, 30);
  full.runner->run_layer(1, hidden, out);
  EXPECT_NE(selection(full, 30), chosen);
}

// A layer that is handed its selection still writes its indexer keys: the next step may select for itself.
TEST(MlaSkipTopk, StillWritesIndexerKeys) {
  const auto model = synthesized(small_mla("mla_v32", 4, 1));
  LayerFixture chosen(model->string(), {0}), given(model->string(), {0});
  const std::vector<float> want = chosen.prefill(0, 100);
  given.runner->add_request(0);
  given.device->copy(given.runner->topk_indices().data, chosen.runner->topk_indices().data, chosen.runner->topk_indices().bytes(), {});
  ForwardArgs extras;
  extras.skip_topk = true;
  EXPECT_EQ(given.step({{0, 100}}, 0, extras), want);
  EXPECT_EQ(test::cache_bytes(given.runner->pool()), test::cache_bytes(chosen.runner->pool()));
}

TEST(MlaSkipTopk, TheConfigSaysWhichLayersSkip) {
  const auto indexed = [](ModelConfig config) {
    const auto directory = synthesized(config);
    const Checkpoint checkpoint(directory->path());
    const auto device = open_device({});
    const OpSet ops = default_ops();
    LayerOptions options;
    options.limits = {.max_num_batched_tokens = 8, .max_num_seqs = 1, .max_model_len = 64};
    const auto tables = std::make_shared<RopeTables>(device, 64);
    std::string kinds;
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      const auto made = default_layers().make({.checkpoint = checkpoint,
                                               .layer = layer,
                                               .device = device,
                                               .ops = ops,
                                               .options = options,
                                               .rope_tables = tables,
                                               .communicator = nullptr,
                                               .side_streams = nullptr});
      EXPECT_EQ(made->kind(), "mla_sparse");
      EXPECT_EQ(made->index_topk(), 32);
      const auto groups = made->cache_groups();
      const bool keys =
          std::any_of(groups.begin(), groups.end(), [](const CacheGroupSpec& g) { return g.group == CacheGroup::mla_indexer; });
      EXPECT_EQ(checkpoint.find("model.layers." + std::to_string(layer) + ".self_attn.indexer.wk.weight") != nullptr, keys);
      kinds += keys ? 'F' : 'S';
    }
    return kinds;
  };
  ModelConfig config = small_mla("mla_v32", 1, 6);
  EXPECT_EQ(indexed(config), "FFFFFF");
  config.index_topk_freq = 2;
  EXPECT_EQ(indexed(config), "FFSFSF");
  config.index_topk_freq = 4;
  EXPECT_EQ(indexed(config), "FFSSSF");
  config.index_skip_topk_offset = 4;
  EXPECT_EQ(indexed(config), "FFFFSS");
  config.index_topk_pattern = "FSSFFS";  // goes before the frequency
  EXPECT_EQ(indexed(config), "FSSFFS");
}

// The output with a used workspace and used caches equals the one with fresh ones: nothing is read before it is written.
TEST(MlaWorkspace, ContentsDoNotMatter) {
  for (const std::string& model : kModels) {
    LayerFixture a(0, {}, nullptr, model), b(0, {}, nullptr, model);
    const std::vector<float> first = a.prefill(0, 300);
    a.runner->remove_request(0);
    EXPECT_EQ(a.prefill(1, 300), first) << "a used workspace changed the result of " << model;
    EXPECT_EQ(b.prefill(0, 300), first);
  }
}

// What linear ops require on a GPU, where a view between ops must not be refused: x and y as aligned as their row stride. The key latent
// begins after the query's, here at a multiple of 8 bytes in rows of a multiple of 16.
TEST(MlaAlignment, LinearOpsGetRowsAsAlignedAsTheyAreApart) {
  ModelConfig config = small_mla("mla_v3");
  config.q_lora_rank = 100;
  config.kv_lora_rank = 124;
  ASSERT_EQ((config.q_lora_rank + config.kv_lora_rank + config.qk_rope_head_dim) % 8, 0);
  const auto model = synthesized(config);
  OpSet ops = default_ops();
  int calls = 0;
  ops.linear = {"linear",
                [&calls, linear = ops.linear](const LinearParams& p, DeviceId device) {
                  linear.check(p, device);
                  for (const TensorView& v : {p.x, p.y}) {
                    EXPECT_EQ(reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(ops::row_alignment(v)), 0u) << v.describe();
                  }
                  ++calls;
                },
                ops.linear.implementations()};
  for (const MlaMode mode : {MlaMode::mha, MlaMode::mqa}) {
    LayerOptions options;
    options.mla_mode = mode;
    options.kv_format = KvFormat::bf16;
    LayerFixture layer(model->string(), {0}, options, nullptr, ops);
    const std::vector<float> out = layer.prefill(0, 60);
    EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float v) { return std::isfinite(v); }));
  }
  EXPECT_GT(calls, 0);
}

}  // namespace
}  // namespace strata
