// A small model's requests on a device, prefilled and decoded, for the tests that compare whole runs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include "runner/decode_graph.h"
#include "formats/bf16.h"
#include "test_data.h"

namespace strata::test {

// The checkpoint of a recorded model, or the folder itself where `model` is an absolute path; "v4_many_heads": random weights, and queries
// of eight times the rows of the indexer's instead of twice, for which a V4 layer has other orders.
inline std::filesystem::path model_directory(const std::string& model) {
  if (model != "v4_many_heads") return test::golden_folder(model);
  static const struct Synthesized {
    std::filesystem::path path = std::filesystem::temp_directory_path() / ("strata_many_heads_" + std::to_string(std::random_device{}()));
    Synthesized() {
      ModelConfig config = preset("v4-tiny");
      config.num_attention_heads = 16;
      synthesize_checkpoint(config, {}, path);
    }
    ~Synthesized() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } synthesized;
  return synthesized.path;
}

// Requests of several lengths, prefilled, then decoded step by step; requests come and go. All from one seed.
class Session {
  static constexpr int64_t kRequests = 12, kMaxLen = 400, kSteps = 24;

 public:
  Session(const std::shared_ptr<Device>& device, const std::string& model, bool overlap)
      : device_(device), checkpoint_(model_directory(model)), hidden_size_(checkpoint_.config().hidden_size) {
    runner::RunnerOptions options;
    options.layer.limits = {.max_num_batched_tokens = 512, .max_num_seqs = kRequests, .max_model_len = kMaxLen};
    options.total_positions = kRequests * kMaxLen;
    options.shuffle_pages = true;
    options.overlap = overlap;
    runner_ = std::make_unique<runner::ModelRunner>(checkpoint_, checkpoint_.attention_layers(), device, default_ops(), default_layers(),
                                                    options);
    graphs_ = std::make_unique<runner::DecodeGraphs>(*runner_, kRequests, kMaxLen);
    prefill_in_ = Tensor(device, DType::bf16, {512, hidden_size_});
    prefill_out_ = Tensor(device, DType::bf16, {512, hidden_size_});
  }

  // Every output of every decode step. `midway` is called in between.
  std::vector<uint16_t> outputs(bool graph, const std::function<void()>& midway = {}) {
    std::vector<uint16_t> all;
    for (int64_t r = 0; r < kRequests - 1; ++r) prefill(r, 3 + 20 * r);  // steps of 11, 10, 11, 10 and 8 requests
    int launches = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step == 7) remove(1);
      if (step == 9 && midway) midway();
      if (step == 11) prefill(kRequests, 130);
      if (step == 15) remove(3);
      if (step == 19) {
        remove(0);
        remove(2);
      }
      std::vector<runner::StepRequest> requests;
      for (const int64_t id : ids_) requests.push_back({id, 1});
      const auto count = std::ssize(requests);
      const Batch& batch = runner_->begin_step(requests, graphs_->padding(count));
      for (size_t l = 0; l < runner_->num_layers(); ++l) {
        load(graphs_->hidden(l), count);
        device_->fill(graphs_->out(l).data, 0xFF, graphs_->out(l).bytes(), runner_->stream());
      }
      if (graph) {
        launches += graphs_->run();
      } else {
        const int64_t tokens = batch.num_tokens;
        for (size_t l = 0; l < runner_->num_layers(); ++l) {
          runner_->run_layer(l, graphs_->hidden(l).slice(0, tokens), graphs_->out(l).slice(0, tokens));
        }
      }
      for (size_t l = 0; l < runner_->num_layers(); ++l) store(graphs_->out(l), batch.num_tokens, all);
      runner_->end_step();
    }
    if (graph) {
      EXPECT_GE(launches, kSteps - 3) << "there are three sizes at most";
    }
    return all;
  }

  runner::ModelRunner& runner() { return *runner_; }
  runner::DecodeGraphs& graphs() { return *graphs_; }
  void load(const TensorView& to, int64_t rows) {
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(static_cast<size_t>(rows * hidden_size_));
    for (Bf16& v : values) v = to_bf16(normal(random_));
    device_->copy_from_host(to.data, values.data(), values.size() * sizeof(Bf16), runner_->stream());
    device_->synchronize(runner_->stream());
  }
  void prefill(int64_t id, int64_t tokens) {
    runner_->add_request(id);
    ids_.push_back(id);
    const runner::StepRequest step[] = {{id, tokens}};
    runner_->begin_step(step);
    load(prefill_in_.view(), tokens);
    for (size_t l = 0; l < runner_->num_layers(); ++l) {
      runner_->run_layer(l, prefill_in_.view().slice(0, tokens), prefill_out_.view().slice(0, tokens));
    }
    runner_->end_step();
  }

 private:
  void remove(int64_t id) {
    runner_->remove_request(id);
    std::erase(ids_, id);
  }
  void store(const TensorView& from, int64_t rows, std::vector<uint16_t>& all) {
    const size_t before = all.size();
    all.resize(before + static_cast<size_t>(rows * hidden_size_));
    device_->copy_to_host(all.data() + before, from.data, (all.size() - before) * sizeof(uint16_t), runner_->stream());
    device_->synchronize(runner_->stream());
  }

  std::shared_ptr<Device> device_;
  Checkpoint checkpoint_;
  int64_t hidden_size_;
  std::mt19937 random_{17};
  std::vector<int64_t> ids_;
  std::unique_ptr<runner::ModelRunner> runner_;
  std::unique_ptr<runner::DecodeGraphs> graphs_;
  Tensor prefill_in_, prefill_out_;
};

}  // namespace strata::test
