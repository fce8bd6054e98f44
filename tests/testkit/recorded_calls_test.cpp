// What is recorded of a layer is its whole forward; what is measured of a call is its time.
#include "testkit/harness/recorded_calls.h"

#include <gmock/gmock.h>

#include <chrono>
#include <random>
#include <thread>

#include "testkit/bench/breakdown.h"
#include "formats/bf16.h"
#include "runner/model_plan.h"
#include "runner/model_runner.h"
#include "test_data.h"

namespace strata {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;

constexpr int64_t kTokens = 12;

std::vector<uint8_t> bytes_of(const Tensor& tensor) {
  const auto* data = tensor.view().ptr<uint8_t>();
  return {data, data + tensor.view().bytes()};
}

class RecordedLayer : public testing::Test {
 protected:
  RecordedLayer() : checkpoint_(test::golden_folder("v4_fp8").string()), recorder_(default_ops()) {
    const int64_t layer = four_to_one();
    runner::RunnerOptions options;
    options.layer.limits = {.max_num_batched_tokens = kTokens, .max_num_seqs = 1, .max_model_len = 64};
    options.total_positions = 64;
    runner_ = std::make_unique<runner::ModelRunner>(checkpoint_, std::vector<int64_t>{layer}, device_, recorder_.ops(), default_layers(),
                                                    options);
    runner_->add_request(0);
    const runner::StepRequest step[] = {{0, kTokens}};
    runner_->begin_step(step);
    hidden_ = Tensor(device_, DType::bf16, {kTokens, checkpoint_.config().hidden_size});
    out_ = Tensor(device_, DType::bf16, {kTokens, checkpoint_.config().hidden_size});
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    auto* values = hidden_.view().ptr<Bf16>();
    for (int64_t i = 0; i < hidden_.view().numel(); ++i) values[i] = to_bf16(normal(random));
  }

  int64_t four_to_one() const {
    for (const int64_t layer : checkpoint_.attention_layers()) {
      if (checkpoint_.config().compress_ratio(layer) == 4) return layer;
    }
    throw std::logic_error("no 4:1 layer");
  }
  void forward() { runner_->run_layer(0, hidden_, out_); }

  std::shared_ptr<Device> device_ = open_device({});
  Checkpoint checkpoint_;
  testkit::CallRecorder recorder_;
  std::unique_ptr<runner::ModelRunner> runner_;
  Tensor hidden_, out_;
};

TEST_F(RecordedLayer, CallsInOrderAreTheForward) {
  const std::vector<testkit::RecordedCall> calls = recorder_.record({}, [&] { forward(); });
  const std::vector<uint8_t> want = bytes_of(out_);
  device_->fill(out_.view().data, 0xFF, out_.view().bytes(), {});
  ASSERT_NE(bytes_of(out_), want);
  for (const testkit::RecordedCall& call : calls) call.run({});
  EXPECT_EQ(bytes_of(out_), want);
}

TEST_F(RecordedLayer, CallsAreNamed) {
  std::vector<std::string> ops, implementations;
  for (const testkit::RecordedCall& call : recorder_.record({}, [&] { forward(); })) {
    ops.push_back(call.op);
    implementations.push_back(call.implementation);
    EXPECT_EQ(call.lane, 0) << call.op << ": a CPU has no lanes";
    if (call.op == "linear") {
      EXPECT_THAT(call.shape, testing::MatchesRegex("[0-9]+ x [0-9]+"));
    }
  }
  for (const char* op : {"linear", "rms_norm_pair", "qnorm_rope_kv_insert", "compress_norm_rope_store", "indexer_query", "indexer_topk",
                         "sparse_attn_prefill", "grouped_linear"}) {
    EXPECT_THAT(ops, Contains(op));
  }
  EXPECT_EQ(ops.back(), "linear");
  EXPECT_THAT(implementations, Each(testing::AnyOf("reference", testing::StartsWith("cpu/"))));
}

TEST_F(RecordedLayer, OnlyWhatRunsWhileRecordingIsRecorded) {
  forward();
  EXPECT_TRUE(recorder_.record({}, [] {}).empty());
  const size_t once = recorder_.record({}, [&] { forward(); }).size();
  EXPECT_EQ(recorder_.record({}, [&] { forward(); }).size(), once);
}

TEST_F(RecordedLayer, WithoutRunsCallsAreNotedAndNotMade) {
  const auto names = [](const std::vector<testkit::RecordedCall>& calls) {
    std::vector<std::string> result;
    result.reserve(calls.size());
    for (const testkit::RecordedCall& c : calls) result.push_back(c.op + " " + c.weight + " " + c.shape + " " + c.implementation);
    return result;
  };
  const std::vector<std::string> made = names(recorder_.record({}, [&] { forward(); }));
  testkit::CallRecorder notes(default_ops(), /*runs=*/false);
  runner::RunnerOptions options;
  options.layer.limits = {.max_num_batched_tokens = kTokens, .max_num_seqs = 1, .max_model_len = 64};
  options.total_positions = 64;
  const runner::PlannedModel planned(Checkpoint(test::golden_folder("v4_fp8").string()), device_);
  runner::ModelRunner runner(planned.checkpoint(), {four_to_one()}, planned.device(), notes.ops(), default_layers(), options);
  runner.add_request(0);
  const runner::StepRequest step[] = {{0, kTokens}};
  runner.begin_step(step);
  const Tensor hidden(planned.device(), DType::bf16, {kTokens, checkpoint_.config().hidden_size});
  EXPECT_EQ(names(notes.record({}, [&] { runner.run_layer(0, hidden, hidden); })), made);
}

TEST(MeasureCalls, TimeOfEachCall) {
  using namespace std::chrono_literals;
  std::vector<std::string> order;
  std::vector<testkit::RecordedCall> calls(2);
  calls[0].run = [&](Stream) {
    order.push_back("short");
    std::this_thread::sleep_for(2ms);
  };
  calls[1].run = [&](Stream) {
    order.push_back("long");
    std::this_thread::sleep_for(25ms);
  };
  const std::vector<double> seconds = testkit::measure_calls(calls, open_device({}), {.min_time = 0, .min_samples = 3});
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_GE(seconds[0], 2e-3);
  EXPECT_GE(seconds[1], 25e-3);
  EXPECT_LT(seconds[0], seconds[1]);
  EXPECT_THAT(order, ElementsAre("short", "long", "short", "long", "short", "long", "short", "long"));
}

TEST(MeasureCalls, NothingOfNothing) { EXPECT_TRUE(testkit::measure_calls({}, open_device({}), {}).empty()); }

}  // namespace
}  // namespace strata
