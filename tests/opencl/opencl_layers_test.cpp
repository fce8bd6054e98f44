// Whole layers on opencl:0: against the CPU, as graphs, in threads, and where memory runs out.
#include <gmock/gmock.h>

#include <array>
#include <thread>

#include "layers/graph_tests.h"
#include "layers/mla_model.h"

namespace strata {
namespace {

using testing::HasSubstr;

class OpenClLayers : public test::DeviceTest {
 protected:
  OpenClLayers() : DeviceTest({DeviceKind::opencl, 0}) {}
};

struct Model {
  const char* name;
  bool fp8;
  double bound;
  friend void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }
};
// Every kind of layer. FP8 weights have quantised activations, where another rounding can be another step.
constexpr Model kModels[] = {{"v4_bf16", false, 1e-2}, {"v4_fp8", true, 4e-2},   {"mla_v2_lite", false, 1e-2}, {"mla_v3", false, 1e-2},
                             {"mla_v3", true, 4e-2},   {"mla_v32", false, 1e-2}, {"hf_glm5", false, 1e-2}};

class OpenClModels : public OpenClLayers, public testing::WithParamInterface<Model> {};

TEST_P(OpenClModels, AgreeWithTheCpu) {
  ModelConfig config = ModelConfig::load(test::golden_model(GetParam().name));
  if (config.index_topk > 0) config.index_topk = 512;  // everything: which of two equal entries is selected may differ
  const auto directory = test::synthesized(config, GetParam().fp8);
  const auto floats = [&](const std::shared_ptr<Device>& device) {
    std::vector<float> values;
    for (const uint16_t bits : Session(device, directory->string(), true).outputs(false)) values.push_back(to_float(Bf16{bits}));
    return values;
  };
  EXPECT_LE(test::relative_difference(floats(device_), floats(open_device({}))), GetParam().bound);
}

INSTANTIATE_TEST_SUITE_P(Layers, OpenClModels, testing::ValuesIn(kModels),
                         [](const auto& test) { return test.param.name + std::string(test.param.fp8 ? "_fp8" : ""); });

INSTANTIATE_TEST_SUITE_P(OpenCl, DecodeGraph, testing::ValuesIn(graph_cases({DeviceKind::opencl, 0}, {"v4_fp8", "mla_v3", "mla_v32"})),
                         graph_case_name);

// One thread's layers run as graphs, the other's one by one.
TEST_F(OpenClLayers, TwoThreadsAtOnceGiveTheSameBits) {
  constexpr std::array<const char*, 2> kNames{"v4_fp8", "mla_v3"};
  std::array<std::vector<uint16_t>, 2> alone, at_once;
  for (size_t i = 0; i < 2; ++i) alone[i] = Session(device_, kNames[i], true).outputs(false);
  std::array<std::string, 2> failures;
  std::array<std::thread, 2> threads;
  for (size_t i = 0; i < 2; ++i) {
    threads[i] = std::thread([&, i] {
      try {
        at_once[i] = Session(device_, kNames[i], true).outputs(i == 0);
      } catch (const std::exception& error) {
        failures[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(failures[i], "");
    EXPECT_EQ(at_once[i], alone[i]) << kNames[i];
    EXPECT_GT(alone[i].size(), 0u);
  }
}

// Wherever the construction of layers, caches and tables ends, all of it is given back, and a run on the same device goes on as if nothing
// had been.
TEST_F(OpenClLayers, AConstructionThatRunsOutOfMemoryLeavesNothing) {
  const std::vector<uint16_t> undisturbed = Session(device_, "v4_fp8", true).outputs(false);
  int failed = 0;
  const auto fail_everywhere = [&] {
    for (bool made = false; !made; ++failed) {
      const auto device = std::make_shared<test::CountingDevice>(device_);
      device->fail_at = failed + 1;
      try {
        const Session session(device, "v4_fp8", true);
        made = true;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
        EXPECT_THAT(error.what(), HasSubstr("opencl:0: allocation of 1125899906842624 bytes failed; the device has"));
      }
      EXPECT_EQ(device->live, 0) << "at allocation " << device->fail_at;
    }
  };
  EXPECT_EQ(Session(device_, "v4_fp8", true).outputs(false, fail_everywhere), undisturbed);
  EXPECT_GT(failed, 20) << "allocations of a construction";
}

TEST_F(OpenClLayers, CachesThatAreTooLargeAreNamedAndTheDeviceGoesOn) {
  const std::vector<uint16_t> before = Session(device_, "mla_v3", true).outputs(false);
  const Checkpoint checkpoint(test::golden_folder("mla_v3"));
  runner::RunnerOptions options;
  options.layer.limits = {.max_num_batched_tokens = 64, .max_num_seqs = 4096, .max_model_len = int64_t{1} << 17};
  options.total_positions = int64_t{1} << 29;
  const Error error = error_of([&] {
    const runner::ModelRunner runner(checkpoint, checkpoint.attention_layers(), device_, default_ops(), default_layers(), options);
  });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("opencl:0: allocation of"));
  EXPECT_EQ(Session(device_, "mla_v3", true).outputs(false), before);
}

}  // namespace
}  // namespace strata
