// Tensor parallelism: each rank loads its heads only; the sum of the ranks' outputs is the single-rank output, and all ranks select the
// same keys.
#include <cstring>

#include "mla_model.h"

namespace strata {
namespace {

using test::golden_model;
using test::LayerFixture;
using test::relative_difference;
using test::small_mla;

struct Shards {
  const char* name;
  const char* model;
  bool fp8;  // of random weights; else the recorded model
  MlaMode mode;
};
constexpr Shards kShards[] = {
    {"v2_lite_mha", "mla_v2_lite", false, MlaMode::mha},
    {"v2_lite_mqa", "mla_v2_lite", false, MlaMode::mqa},
    {"v3", "mla_v3", false, MlaMode::automatic},
    {"v32", "mla_v32", false, MlaMode::automatic},
    // A head of q_b_proj has 192 rows: with FP8 the shards of odd heads begin in the middle of a block of scales.
    {"v2_lite_fp8", "mla_v2_lite", true, MlaMode::mha},
    {"v3_fp8_mha", "mla_v3", true, MlaMode::mha},
    {"v3_fp8_mqa", "mla_v3", true, MlaMode::mqa},
    {"v32_fp8", "mla_v32", true, MlaMode::automatic},
};

class MlaTensorParallel : public testing::TestWithParam<Shards> {};

TEST_P(MlaTensorParallel, SumOfRanksEqualsOneRank) {
  const Shards& shards = GetParam();
  const auto made = shards.fp8 ? test::synthesized(small_mla(shards.model), true) : nullptr;
  const std::string directory = made ? made->string() : golden_model(shards.model);
  const auto rank_of = [&](int rank, int size) {
    LayerOptions options;
    options.mla_mode = shards.mode;
    options.tp_rank = rank;
    options.tp_size = size;
    return std::make_unique<LayerFixture>(directory, std::vector<int64_t>{0}, options);
  };
  // A prefill of new tokens, one with context, and decode steps.
  const auto run = [](LayerFixture& fixture) {
    std::vector<float> all = fixture.prefill(0, 150);
    for (const auto& [tokens, first] : {std::pair<int64_t, int64_t>{60, 150}, {1, 210}, {1, 211}}) {
      const std::vector<float> out = fixture.step({{0, tokens}}, first);
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  };
  const auto whole = rank_of(0, 1);
  const std::vector<float> want = run(*whole);
  for (const int size : {2, 4}) {
    std::vector<float> sum(want.size(), 0.0f);
    for (int rank = 0; rank < size; ++rank) {
      const auto fixture = rank_of(rank, size);
      EXPECT_EQ(fixture->runner->layer(0).num_heads(), 4 / size);
      EXPECT_LT(fixture->runner->layer(0).weight_bytes(), whole->runner->layer(0).weight_bytes()) << "a rank must hold its shard only";
      const std::vector<float> part = run(*fixture);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      // Caches and the selection are whole on every rank (MLA 15).
      EXPECT_EQ(test::cache_bytes(fixture->runner->pool()), test::cache_bytes(whole->runner->pool())) << "rank " << rank << " of " << size;
      if (whole->runner->layer(0).index_topk() > 0) {
        EXPECT_EQ(std::memcmp(fixture->runner->topk_indices().data, whole->runner->topk_indices().data, 32 * sizeof(int32_t)), 0);
      }
    }
    // Each partial sum is rounded to bf16 once: 2^-9 relative to its own size.
    EXPECT_LE(relative_difference(sum, want), 6e-3) << "tp " << size;
  }
}

std::string name_of(const testing::TestParamInfo<Shards>& test) { return test.param.name; }
INSTANTIATE_TEST_SUITE_P(Shards, MlaTensorParallel, testing::ValuesIn(kShards), name_of);

TEST(MlaTensorParallelErrors, SizesThatDoNotDivide) {
  const auto refused = [](int rank, int size, const char* message) {
    LayerOptions options;
    options.tp_rank = rank;
    options.tp_size = size;
    try {
      LayerFixture fixture(0, options, nullptr, "mla_v3");
      FAIL() << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refused(0, 3, "num_attention_heads must be a multiple of tp_size 3, is 4");
  refused(0, 8, "num_attention_heads must be a multiple of tp_size 8, is 4");
  refused(2, 2, "tp_rank must be in [0, tp_size = 2), is 2");
  refused(-1, 2, "tp_rank must be in [0, tp_size = 2), is -1");
  refused(0, 0, "tp_size must be at least 1, is 0");
}

TEST(MlaCommunicator, ReducesOnceAfterTheOutputProjectionAndInDummyRunsToo) {
  struct Counting final : Communicator {
    int rank() const override { return 0; }
    int size() const override { return 1; }
    void all_reduce_sum(const TensorView& tensor, Device&, Stream) override {
      ++calls;
      rows = tensor.shape[0];
    }
    int calls = 0;
    int64_t rows = 0;
  };
  const auto communicator = std::make_shared<Counting>();
  LayerFixture fixture(0, {}, communicator, "mla_v3");
  fixture.prefill(0, 130);
  EXPECT_EQ(communicator->calls, 1);
  EXPECT_EQ(communicator->rows, 130);
  ForwardArgs args;
  args.dummy_run = true;
  args.hidden = fixture.hidden;
  args.out = fixture.out;
  fixture.runner->layer(0).forward(args);
  EXPECT_EQ(communicator->calls, 2) << "a rank that waits for the sum would wait for ever";
}

}  // namespace
}  // namespace strata
