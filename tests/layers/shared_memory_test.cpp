// Memory that two things share: hidden states that are overwritten by the output, and pages that are in the tables of several requests.

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
      const cases::StepRequest step[] = {{0, tokens}};
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
        workspace_(fixture.device, DType::u8, {static_cast<int64_t>(layer_.workspace_bytes())}),
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

// Prefix caching: the pages of a common prefix are in the tables of several requests, which read them at once. 256 positions are whole
// pages of every group of V4, 64 of MLA, so nobody writes a page that another has.
TEST_P(SharedMemory, RequestsMaySharePagesThatNobodyWrites) {
  constexpr int64_t kPrefix = 256, kFirst = 7, kSecond = 20;
  for (const int64_t layer : GetParam().layers) {
    LayerFixture fixture(layer, {}, nullptr, GetParam().name);
    const int64_t window = fixture.checkpoint.config().sliding_window;
    // shared: the second request reads the prefix where the first wrote it; else each has written it.
    const auto run = [&](bool shared) {
      Tables tables(fixture, window);
      PagedPool& pool = tables.pool();
      for (const int64_t id : {0, 1}) pool.add_request(id);
      for (const int64_t id : {0, 1}) {
        EXPECT_TRUE(pool.extend(id, 0, kPrefix));  // of the second, when it shares: pages that stay NaN
        if (id == 0 || !shared) tables.step({{.seq_len = kPrefix, .query_len = kPrefix, .block_tables = pool.block_tables(id)}});
        EXPECT_TRUE(pool.extend(id, kPrefix, kPrefix));  // pages behind the windows go back
      }
      std::array<std::vector<int32_t>, kNumCacheGroups> prefix;
      for (size_t g = 0; g < kNumCacheGroups; ++g) {
        const auto table = pool.block_tables(0)[g];
        prefix[g].assign(table.begin(), table.end());
      }
      EXPECT_TRUE(pool.extend(0, kPrefix, kPrefix + kFirst));
      EXPECT_TRUE(pool.extend(1, kPrefix, kPrefix + kSecond));
      std::array<std::vector<int32_t>, kNumCacheGroups> of_second;
      BlockTables second = pool.block_tables(1);
      for (size_t g = 0; g < kNumCacheGroups && shared; ++g) {
        of_second[g].assign(second[g].begin(), second[g].end());
        std::copy(prefix[g].begin(), prefix[g].end(), of_second[g].begin());
        second[g] = of_second[g];
      }
      return tables.step({{.seq_len = kPrefix + kFirst, .query_len = kFirst, .block_tables = pool.block_tables(0)},
                          {.seq_len = kPrefix + kSecond, .query_len = kSecond, .block_tables = second}});
    };
    EXPECT_EQ(run(true), run(false)) << "layer " << layer;
  }
}

std::string name_of(const testing::TestParamInfo<Model>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Models, SharedMemory, testing::ValuesIn(kModels), name_of);

}  // namespace
}  // namespace strata
