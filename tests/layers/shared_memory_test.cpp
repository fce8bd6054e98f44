// Memory that two things share: hidden states that are overwritten by the output, and pages that several requests have.

#include "layer_fixture.h"
#include "mla_model.h"

namespace strata {
namespace {

using test::LayerFixture;

struct Model {
  const char* name;
  std::vector<int64_t> layers;
  friend void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }
};

// Every kind of layer: window, 4:1, 128:1; dense and sparse MLA.
const Model kModels[] = {{"v4_fp8", {0, 1, 2}}, {"mla_v3", {0}}, {"mla_v32", {0}}};

class SharedMemory : public testing::TestWithParam<Model> {};

TEST_P(SharedMemory, OutMayBeHidden) {
  for (const int64_t layer : GetParam().layers) {
    LayerFixture apart(layer, {}, nullptr, GetParam().name), in_place(layer, {}, nullptr, GetParam().name);
    const std::vector<float> prefill = apart.prefill(0, 150), decode = apart.step({{0, 1}}, 150);
    const auto run = [&](int64_t first_row, int64_t tokens) {
      const runner::StepRequest step[] = {{0, tokens}};
      in_place.runner->begin_step(step);
      const TensorView rows = in_place.hidden.view().slice(first_row, tokens);
      in_place.runner->run_layer(0, rows, rows);
      in_place.runner->end_step();
      std::vector<float> values;
      for (int64_t i = 0; i < tokens * 256; ++i) values.push_back(to_float(rows.ptr<Bf16>()[i]));
      return values;
    };
    in_place.runner->add_request(0);
    EXPECT_EQ(run(0, 150), prefill) << "layer " << layer;
    EXPECT_EQ(run(150, 1), decode) << "layer " << layer;
  }
}

// One layer with caches and metadata whose block tables a test makes itself.
class Tables {
 public:
  Tables(LayerFixture& fixture, int64_t window)
      : fixture_(fixture),
        layer_(fixture.runner->layer(0)),
        groups_{layer_.cache_groups()},
        pool_(fixture.device, groups_, plan_pages(groups_, kLimits), 0xFF),
        builder_(fixture.device, default_ops(), kLimits, pool_, window),
        workspace_(fixture.device, DType::u8, {layer_.workspace_bytes()}),
        topk_(fixture.device, DType::i32, {kLimits.max_num_batched_tokens, std::max<int64_t>(layer_.index_topk(), 1)}) {}

  PagedPool& pool() { return pool_; }
  // The output of a step over the first rows of `hidden`.
  std::vector<float> step(const std::vector<BatchRequest>& requests) {
    const Batch& batch = builder_.build(requests);
    ForwardArgs args;
    args.batch = &batch;
    args.caches = pool_.layer(0);
    args.hidden = fixture_.hidden.view().slice(0, batch.num_tokens);
    args.out = fixture_.out.view().slice(0, batch.num_tokens);
    args.topk_indices = topk_;
    args.workspace = workspace_of(workspace_);
    layer_.forward(args);
    return fixture_.output(batch.num_tokens);
  }

 private:
  static constexpr BatchLimits kLimits{.max_num_batched_tokens = 320, .max_num_seqs = 4, .max_model_len = 640};
  LayerFixture& fixture_;
  AttentionLayer& layer_;
  std::vector<std::vector<CacheGroupSpec>> groups_;
  PagedPool pool_;
  BatchBuilder builder_;
  Tensor workspace_, topk_;
};

// Prefix caching: a request whose prefix another one computed has the same outputs as one that computed it itself.
TEST_P(SharedMemory, ASharedPrefixChangesNoBit) {
  constexpr int64_t kFirst = 7, kSecond = 20;
  for (const int64_t layer : GetParam().layers) {
    LayerFixture fixture(layer, {}, nullptr, GetParam().name);
    const int64_t window = fixture.checkpoint.config().sliding_window;
    const auto run = [&](bool shared) {
      Tables tables(fixture, window);
      PagedPool& pool = tables.pool();
      const int64_t prefix = 256 / pool.prefix_granularity() * pool.prefix_granularity();
      EXPECT_EQ(prefix, 256);
      for (const int64_t id : {0, 1}) {
        if (id == 1 && shared) {
          pool.add_request(1, {.request = 0, .positions = prefix});
          continue;
        }
        pool.add_request(id);
        EXPECT_TRUE(pool.extend(id, 0, prefix));
        tables.step({{.seq_len = prefix, .query_len = prefix, .block_tables = pool.block_tables(id)}});
        pool.mark_computed(id, prefix);
      }
      const auto both = [&](int64_t computed) {  // each has its own tokens from here on
        EXPECT_TRUE(pool.extend(0, prefix + computed, prefix + computed + kFirst));
        EXPECT_TRUE(pool.extend(1, prefix + computed, prefix + computed + kSecond));
        return tables.step({{.seq_len = prefix + computed + kFirst, .query_len = kFirst, .block_tables = pool.block_tables(0)},
                            {.seq_len = prefix + computed + kSecond, .query_len = kSecond, .block_tables = pool.block_tables(1)}});
      };
      std::vector<float> outputs = both(0);
      // The one that computed the prefix goes; its pages are not free (their fill byte is NaN), the other reads on.
      pool.remove_request(0);
      EXPECT_TRUE(pool.extend(1, prefix + kSecond, prefix + 2 * kSecond));
      const std::vector<float> later =
          tables.step({{.seq_len = prefix + 2 * kSecond, .query_len = kSecond, .block_tables = pool.block_tables(1)}});
      outputs.insert(outputs.end(), later.begin(), later.end());
      return outputs;
    };
    EXPECT_EQ(run(true), run(false)) << "layer " << layer;
  }
}

// Between build() and forward() nothing of the pool may change; before build(), tables that are out of date are refused.
TEST_P(SharedMemory, TablesOfARemovedRequestAreRefused) {
  LayerFixture fixture(GetParam().layers.front(), {}, nullptr, GetParam().name);
  Tables tables(fixture, fixture.checkpoint.config().sliding_window);
  tables.pool().add_request(9);
  ASSERT_TRUE(tables.pool().extend(9, 0, 40));
  const BatchRequest request{.seq_len = 40, .query_len = 40, .block_tables = tables.pool().block_tables(9)};
  EXPECT_NO_THROW(tables.step({request}));
  tables.pool().remove_request(9);
  EXPECT_THROW(tables.step({request}), Error);
}

std::string name_of(const testing::TestParamInfo<Model>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Models, SharedMemory, testing::ValuesIn(kModels), name_of);

}  // namespace
}  // namespace strata
