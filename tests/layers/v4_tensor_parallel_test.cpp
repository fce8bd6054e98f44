// Tensor parallelism: each rank loads its shard only; the sum of the ranks' outputs is the single-rank output.
#include <cmath>

#include "mla_model.h"

namespace strata {
namespace {

using test::LayerFixture;

class V4TensorParallel : public testing::TestWithParam<std::tuple<std::string, int64_t, bool>> {};

// The golden models have two groups; for tp 4 a checkpoint with four is made.
std::string four_group_model() {
  static const std::unique_ptr<test::ModelDirectory> directory = [] {
    ModelConfig config = ModelConfig::load(test::golden_model("v4_fp8"));
    config.num_attention_heads = 8;
    config.o_groups = 4;
    return test::synthesized(config, /*fp8=*/true);
  }();
  return directory->string();
}

std::vector<float> run_rank(const std::string& model, int64_t layer, int rank, int size, bool fp8_output, size_t* weight_bytes) {
  const Checkpoint checkpoint(model);
  const auto device = open_device({});
  runner::RunnerOptions options;
  options.layer.limits = {.max_num_batched_tokens = 300, .max_num_seqs = 1, .max_model_len = 300};
  options.layer.tp_rank = rank;
  options.layer.tp_size = size;
  options.layer.fp8_output = fp8_output;
  options.total_positions = 300;
  runner::ModelRunner runner(checkpoint, {layer}, device, default_ops(), default_layers(), options);
  const Tensor hidden(device, DType::bf16, {300, 256}), out(device, DType::bf16, {300, 256});
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < 300 * 256; ++i) hidden.view().ptr<Bf16>()[i] = to_bf16(normal(random));
  runner.add_request(0);
  const runner::StepRequest step[] = {{0, 300}};
  runner.begin_step(step);
  runner.run_layer(0, hidden, out);
  *weight_bytes = runner.layer(0).weight_bytes();
  std::vector<float> values;
  for (int64_t i = 0; i < 300 * 256; ++i) values.push_back(to_float(out.view().ptr<Bf16>()[i]));
  return values;
}

TEST_P(V4TensorParallel, SumOfRanksEqualsOneRank) {
  const auto& [which, layer, fp8_output] = GetParam();
  const std::string model = which == "four_groups" ? four_group_model() : test::golden_model(which);
  size_t whole_bytes = 0;
  const std::vector<float> whole = run_rank(model, layer, 0, 1, fp8_output, &whole_bytes);
  for (int size : {2, 4}) {
    if (size == 4 && which != "four_groups") continue;
    std::vector<double> sum(whole.size(), 0.0);
    for (int rank = 0; rank < size; ++rank) {
      size_t rank_bytes = 0;
      const std::vector<float> part = run_rank(model, layer, rank, size, fp8_output, &rank_bytes);
      EXPECT_LT(rank_bytes, whole_bytes) << "a rank must hold its shard only";
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    double difference = 0, norm = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      difference += (sum[i] - whole[i]) * (sum[i] - whole[i]);
      norm += double{whole[i]} * whole[i];
    }
    // Each partial sum is rounded to bf16 once: 2^-9 relative to its own size.
    EXPECT_LE(std::sqrt(difference / norm), 6e-3) << "tp " << size;
    EXPECT_GT(norm, 0);
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<std::string, int64_t, bool>>& test) {
  const auto& [model, layer, fp8_output] = test.param;
  return model + "_layer" + std::to_string(layer) + (fp8_output ? "_fp8_output" : "");
}
INSTANTIATE_TEST_SUITE_P(Shards, V4TensorParallel,
                         testing::Combine(testing::Values("v4_bf16", "v4_fp8", "four_groups"), testing::Values(0, 1, 2), testing::Bool()),
                         name_of);

TEST(V4TensorParallelErrors, SizesThatDoNotDivide) {
  LayerOptions options;
  options.tp_size = 4;  // the model has two groups
  try {
    LayerFixture fixture(0, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("o_groups must be a multiple of tp_size 4, is 2"), std::string::npos) << error.what();
  }
  options.tp_size = 2;
  options.tp_rank = 2;
  EXPECT_THROW(LayerFixture(0, options), Error);
}

}  // namespace
}  // namespace strata
