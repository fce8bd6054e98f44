// A small V4 model on disk and one layer of it with its caches: what the tests of single calls start from.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <vector>

#include "formats/bf16.h"
#include "model_runner.h"

namespace strata::test {

// Golden checkpoints double as small models.
inline std::string golden_model(const std::string& name) { return std::string(STRATA_TEST_DATA) + "/golden/" + name; }

struct LayerFixture {
  explicit LayerFixture(int64_t layer, LayerOptions layer_options = {}, std::shared_ptr<Communicator> communicator = nullptr,
                        const std::string& model = "v4_fp8")
      : checkpoint(golden_model(model)), device(open_device({})) {
    cases::RunnerOptions options;
    options.layer = layer_options;
    options.layer.limits = {.max_num_batched_tokens = 320, .max_num_seqs = 4, .max_model_len = 640};
    options.total_positions = 1280;
    options.communicator = std::move(communicator);
    runner = std::make_unique<cases::ModelRunner>(checkpoint, std::vector<int64_t>{layer}, device, default_ops(), default_layers(), options);
    hidden = Tensor(device, DType::bf16, {320, 256});
    out = Tensor(device, DType::bf16, {320, 256});
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < 320 * 256; ++i) hidden.view().ptr<Bf16>()[i] = to_bf16(normal(random));
  }

  // One prefill step of `tokens` tokens of request `id`; the output as floats.
  std::vector<float> prefill(int64_t id, int64_t tokens) {
    runner->add_request(id);
    const cases::StepRequest step[] = {{id, tokens}};
    runner->begin_step(step);
    runner->run_layer(0, hidden.view().slice(0, tokens), out.view().slice(0, tokens));
    runner->end_step();
    std::vector<float> values;
    for (int64_t i = 0; i < tokens * 256; ++i) values.push_back(to_float(out.view().ptr<Bf16>()[i]));
    return values;
  }

  Checkpoint checkpoint;
  std::shared_ptr<Device> device;
  std::unique_ptr<cases::ModelRunner> runner;
  Tensor hidden, out;
};

}  // namespace strata::test
