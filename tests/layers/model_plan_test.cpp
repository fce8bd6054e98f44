// What `strata plan` counts without data is what layers, batch metadata and buffers take when they are made.
#include "runner/model_plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <tuple>

#include "runner/model_runner.h"
#include "strata/checkpoint.h"
#include "strata/error.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using runner::ModelRunner;
using runner::PlannedMemory;
using runner::PlannedModel;

LayerOptions layer_options(int tp_size, int tp_rank) {
  LayerOptions options;
  options.limits = {.max_num_batched_tokens = 96, .max_num_seqs = 3, .max_model_len = 700};
  options.tp_size = tp_size;
  options.tp_rank = tp_rank;
  return options;
}

class ModelPlan : public testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  ModelPlan() {
    const auto& [name, fp8] = GetParam();
    directory_ = fs::path(testing::TempDir()) / (std::string("model_plan_") + name + (fp8 ? "_fp8" : "_bf16"));
    synthesize_checkpoint(preset(name), {.fp8 = fp8}, directory_);
  }
  ~ModelPlan() override {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }

  fs::path directory_;
};

void expect_same(const PlannedMemory& plan, const ModelRunner& runner) {
  EXPECT_EQ(plan.weight_bytes(), static_cast<int64_t>(runner.weight_bytes()));
  EXPECT_EQ(plan.workspace_bytes(), static_cast<int64_t>(runner.workspace_bytes()));
}

TEST_P(ModelPlan, CountsWhatARunTakes) {
  // The portable instruction set keeps FP8 as it is, others pack or dequantise.
  for (const CpuIsa isa : {CpuIsa::portable, CpuIsa::best}) {
    const auto device = open_device({}, {.cpu_isa = isa});
    const Checkpoint checkpoint(directory_);
    const PlannedModel of_shapes(checkpoint.config(), device), of_tensors(Checkpoint(directory_), device);
    EXPECT_EQ(of_shapes.layers(), checkpoint.attention_layers());
    for (const auto& [size, rank] : {std::pair{1, 0}, {2, 0}, {2, 1}}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << size << " on " << device->description());
      const LayerOptions options = layer_options(size, rank);
      runner::RunnerOptions run;
      run.layer = options;
      const ModelRunner runner(checkpoint, checkpoint.attention_layers(), device, default_ops(), default_layers(), run);
      expect_same(of_shapes.memory(options), runner);
      expect_same(of_tensors.memory(options), runner);
      expect_same(of_shapes.memory(options, of_shapes.alike(options)), runner);
      EXPECT_EQ(of_shapes.cache_groups(options).size(), checkpoint.attention_layers().size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, ModelPlan,
                         testing::Combine(testing::Values("v4-tiny", "v2-lite-tiny", "v3-tiny", "v3.2-tiny"), testing::Bool()));

TEST(ModelPlanErrors, RefusesWhatALayerRefuses) {
  const PlannedModel model(preset("v4-tiny"), open_device({}));
  LayerOptions options = layer_options(3, 0);
  EXPECT_THROW(model.memory(options), Error);  // 8 heads
  options = layer_options(1, 0);
  options.kv_format = KvFormat::fp8_ds_mla;
  EXPECT_THROW(model.memory(options), Error);
}

TEST(ModelPlanErrors, NamesATensorThatACheckpointLacks) {
  const ModelConfig config = preset("v4-tiny");
  static const std::byte data[4096 * 4]{};
  const std::string name = "layers.0.attn.q_norm.weight";
  const PlannedModel model(
      Checkpoint(config, {{.name = name, .dtype = DType::bf16, .shape = {config.q_lora_rank}, .data = data, .bytes = 512}}),
      open_device({}));
  try {
    model.memory(layer_options(1, 0));
    FAIL() << "a layer without tensors was planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_file);
    EXPECT_NE(std::string(error.what()).find("wq_a"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace strata
