// Decode steps as graphs: the same bits as layer by layer, whatever lengths, pages and requests a launch has; nothing but launches in a
// forward.
#include <algorithm>
#include <random>

#include "cuda/counting_device.h"
#include "cuda/cuda_fixture.h"
#include "decode_graph.h"
#include "formats/bf16.h"

namespace strata {
namespace {

constexpr int64_t kRequests = 6, kMaxLen = 400, kSteps = 24;

// Requests of several lengths, prefilled, then decoded step by step; requests come and go. All from one seed.
class Session {
 public:
  Session(const std::shared_ptr<Device>& device, const std::string& model, bool overlap)
      : device_(device), checkpoint_(std::string(STRATA_TEST_DATA) + "/golden/" + model), hidden_size_(checkpoint_.config().hidden_size) {
    cases::RunnerOptions options;
    options.layer.limits = {.max_num_batched_tokens = 512, .max_num_seqs = kRequests, .max_model_len = kMaxLen};
    options.total_positions = kRequests * kMaxLen;
    options.shuffle_pages = true;
    options.overlap = overlap;
    runner_ =
        std::make_unique<cases::ModelRunner>(checkpoint_, checkpoint_.attention_layers(), device, default_ops(), default_layers(), options);
    graphs_ = std::make_unique<cases::DecodeGraphs>(*runner_, kRequests, kMaxLen);
    prefill_in_ = Tensor(device, DType::bf16, {512, hidden_size_});
    prefill_out_ = Tensor(device, DType::bf16, {512, hidden_size_});
  }

  // Every output of every decode step.
  std::vector<uint16_t> outputs(bool graph) {
    std::vector<uint16_t> all;
    for (int64_t r = 0; r < kRequests - 1; ++r) prefill(r, 3 + 61 * r);  // steps of 5, 4, 5, 4 and 2 requests
    int launches = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step == 7) remove(1);
      if (step == 11) prefill(10, 130);
      if (step == 15) remove(3);
      if (step == 19) {
        remove(0);
        remove(2);
      }
      std::vector<cases::StepRequest> requests;
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

  cases::ModelRunner& runner() { return *runner_; }
  cases::DecodeGraphs& graphs() { return *graphs_; }
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
    const cases::StepRequest step[] = {{id, tokens}};
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
  std::unique_ptr<cases::ModelRunner> runner_;
  std::unique_ptr<cases::DecodeGraphs> graphs_;
  Tensor prefill_in_, prefill_out_;
};

bool is_number(uint16_t bf16) { return (bf16 & 0x7F80) != 0x7F80; }

class CudaGraph : public test::CudaTest, public testing::WithParamInterface<const char*> {};

TEST_P(CudaGraph, LaunchedEqualsLayerByLayerBitForBit) {
  const auto eager = Session(device_, GetParam(), true).outputs(false), graph = Session(device_, GetParam(), true).outputs(true);
  ASSERT_EQ(eager.size(), graph.size());
  EXPECT_EQ(eager, graph);
  EXPECT_TRUE(std::all_of(eager.begin(), eager.end(), is_number)) << "rows of padding too";
  EXPECT_GT(std::count_if(eager.begin(), eager.end(), [](uint16_t v) { return (v & 0x7FFF) != 0; }), std::ssize(eager) / 2);
}

TEST_P(CudaGraph, AuxiliaryStreamsChangeNothing) {
  EXPECT_EQ(Session(device_, GetParam(), true).outputs(true), Session(device_, GetParam(), false).outputs(true));
}

TEST_P(CudaGraph, AForwardOnlyLaunches) {
  const auto counting = std::make_shared<test::CountingDevice>(device_);
  Session run(counting, GetParam(), true);
  const auto forbidden_in = [&](auto&& f) {
    const int before = counting->forbidden();
    f();
    return counting->forbidden() - before;
  };
  run.runner().add_request(1);
  for (const int64_t tokens : {200, 1, 1}) {  // prefill, decode layer by layer
    const cases::StepRequest step[] = {{1, tokens}};
    run.runner().begin_step(step);
    const Tensor in(device_, DType::bf16, {tokens, run.runner().layer(0).hidden_size()}),
        out(device_, DType::bf16, {tokens, in.view().shape[1]});
    run.load(in, tokens);
    for (size_t l = 0; l < run.runner().num_layers(); ++l) {
      EXPECT_EQ(forbidden_in([&] { run.runner().run_layer(l, in, out); }), 0) << "layer " << l << ", " << tokens << " tokens";
    }
    run.runner().end_step();
    counting->synchronize(run.runner().stream());
  }
  for (int i = 0; i < 2; ++i) {  // a capture, then a launch
    const cases::StepRequest step[] = {{1, 1}};
    run.runner().begin_step(step, run.graphs().padding(1));
    EXPECT_EQ(forbidden_in([&] { EXPECT_EQ(run.graphs().run(), i == 1); }), 0);
    run.runner().end_step();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaGraph, testing::Values("v4_bf16", "v4_fp8", "mla_v3", "mla_v32"),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace strata
