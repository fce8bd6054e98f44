// A small model on disk and layers of it with their caches: what the tests of single calls start from.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "runner/model_runner.h"
#include "test_data.h"

namespace strata::test {

// Golden checkpoints double as small models.
inline std::string golden_model(const std::string& name) { return test::golden_folder(name).string(); }

// A directory for a model that a test makes; goes away with its owner.
class ModelDirectory {
 public:
  ModelDirectory() : path_(std::filesystem::temp_directory_path() / ("strata_model_" + std::to_string(std::random_device{}()))) {
    std::filesystem::create_directories(path_);
  }
  ~ModelDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string string() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

struct LayerFixture {
  explicit LayerFixture(int64_t layer, LayerOptions layer_options = {}, std::shared_ptr<Communicator> communicator = nullptr,
                        const std::string& model = "v4_fp8")
      : LayerFixture(golden_model(model), std::vector<int64_t>{layer}, layer_options, std::move(communicator)) {}
  // Of any model of 256 wide hidden states. `layer_options` may have num_speculative_tokens among its limits; the others are set here.
  LayerFixture(const std::string& directory, const std::vector<int64_t>& layers, LayerOptions layer_options = {},
               std::shared_ptr<Communicator> communicator = nullptr, const OpSet& ops = default_ops())
      : checkpoint(directory), device(open_device({})) {
    runner::RunnerOptions options;
    options.layer = layer_options;
    options.layer.limits = {.max_num_batched_tokens = 320,
                            .max_num_seqs = 4,
                            .max_model_len = 640,
                            .num_speculative_tokens = layer_options.limits.num_speculative_tokens};
    options.total_positions = 1280;
    options.fill = 0xFF;  // what nobody has written yet is NaN, and the same in every fixture
    options.communicator = std::move(communicator);
    runner = std::make_unique<runner::ModelRunner>(checkpoint, layers, device, ops, default_layers(), options);
    hidden = Tensor(device, DType::bf16, {320, 256});
    out = Tensor(device, DType::bf16, {320, 256});
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < 320 * 256; ++i) hidden.view().ptr<Bf16>()[i] = to_bf16(normal(random));
  }

  // One prefill step of `tokens` tokens of request `id`; the output as floats.
  std::vector<float> prefill(int64_t id, int64_t tokens) {
    runner->add_request(id);
    return step({{id, tokens}});
  }
  // One step of these requests, whose tokens are the rows of `hidden` from `first_row` on, through layer `layer`.
  std::vector<float> step(const std::vector<runner::StepRequest>& requests, int64_t first_row = 0, const ForwardArgs& extras = {},
                          size_t layer = 0) {
    int64_t tokens = 0;
    for (const runner::StepRequest& r : requests) tokens += r.num_tokens;
    runner->begin_step(requests);
    runner->run_layer(layer, hidden.view().slice(first_row, tokens), out.view().slice(0, tokens), extras);
    runner->end_step();
    return output(tokens);
  }
  std::vector<float> output(int64_t tokens) const {
    std::vector<float> values;
    for (int64_t i = 0; i < tokens * 256; ++i) values.push_back(to_float(out.view().ptr<Bf16>()[i]));
    return values;
  }

  Checkpoint checkpoint;
  std::shared_ptr<Device> device;
  std::unique_ptr<runner::ModelRunner> runner;
  Tensor hidden, out;
};

// ||a - b|| / ||b||
inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(sum / norm);
}

// The bytes of all caches of a pool's layer.
inline std::vector<std::byte> cache_bytes(const PagedPool& pool, int64_t layer = 0) {
  std::vector<std::byte> bytes;
  for (const PagedCache& cache : pool.layer(layer).caches) {
    if (!cache.present()) continue;
    const auto* data = static_cast<const std::byte*>(cache.data);
    bytes.insert(bytes.end(), data, data + cache.num_pages * cache.page_stride);
  }
  return bytes;
}

}  // namespace strata::test
