// What a layer launches, in which order, on which stream and after what, against recorded traces (tests/layers/launches). Ops do nothing
// here, and the device has streams that only exist by name: a trace is a matter of the layer's code alone.
// STRATA_UPDATE_LAUNCHES=1 writes the traces anew.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/host_device.h"
#include "runner/model_runner.h"
#include "test_data.h"

namespace strata {
namespace {

// Launches and waits as lines: "4 linear wq_b | main | after side0:3".
class Trace {
 public:
  void launch(const std::string& what, Stream stream) {
    const std::string name = name_of(stream);
    std::string line = fmt::format("{} {} | {}", count_, what, name);
    std::sort(waits_[name].begin(), waits_[name].end());
    for (const std::string& wait : waits_[name]) line += " | after " + wait;
    waits_[name].clear();
    last_[name] = count_++;
    text_ += line + "\n";
  }
  void record(const void* event, Stream stream) { events_[event] = name_of(stream); }
  void wait(const void* event, Stream stream) {
    const auto recorded = events_.find(event);
    if (recorded == events_.end()) return;
    const std::string& other = recorded->second;
    const auto last = last_.find(other);
    waits_[name_of(stream)].push_back(last == last_.end() ? other + ":nothing" : fmt::format("{}:{}", other, last->second));
  }
  // The trace so far; waits that no launch follows come last.
  std::string take() {
    for (const auto& [name, waits] : waits_) {
      for (const std::string& wait : waits) text_ += fmt::format("end | {} | after {}\n", name, wait);
    }
    std::string text = std::move(text_);
    *this = {};
    return text;
  }
  // Streams are numbered in the order of their making: the runner's, then the layer's.
  static std::string name_of(Stream stream) {
    const auto number = reinterpret_cast<uintptr_t>(stream.handle);
    return number <= 1 ? "main" : fmt::format("side{}", number - 2);
  }

 private:
  int count_ = 0;
  std::string text_;
  std::map<const void*, std::string> events_;
  std::map<std::string, int> last_;
  std::map<std::string, std::vector<std::string>> waits_;
};

class TracedDevice final : public HostDevice {
 public:
  explicit TracedDevice(Trace& trace) : trace_(trace) {}
  // Zeros: what no op writes must still be a valid index or length.
  void* allocate(int64_t bytes) override {
    void* const data = HostDevice::allocate(bytes);
    fill(data, 0, bytes, {});
    return data;
  }
  Stream create_stream() override { return {reinterpret_cast<void*>(++streams_)}; }
  Event create_event() override { return {reinterpret_cast<void*>(++events_)}; }
  void record(Event event, Stream stream) override { trace_.record(event.handle, stream); }
  void wait(Event event, Stream stream) override { trace_.wait(event.handle, stream); }

 private:
  Trace& trace_;
  uintptr_t streams_ = 0, events_ = 0;
};

template <class Params>
std::string weight_of(const Params&) {
  return "";
}
std::string weight_of(const LinearParams& p) { return " " + p.weight->name; }
std::string weight_of(const GroupedLinearParams& p) { return " " + p.weight->name; }

// Every op does nothing but note its launch.
OpSet traced_ops(Trace& trace) {
  OpSet ops = default_ops();
  for_each_op(ops, [&trace]<class Params>(Op<Params>& op) {
    Implementation<Params> impl;
    impl.name = "trace";
    impl.supports = [](const Params&, const Device&) { return Support::yes(); };
    impl.workspace_bytes = [](const Params&, const Device&) { return 0; };
    impl.run = [&trace, name = op.name()](const Params& p, const ExecutionContext& context) {
      trace.launch(name + weight_of(p), context.stream);
    };
    impl.fuses = [](const Params&, const Device&, std::string_view) { return true; };
    op.prepend(std::move(impl));
  });
  return ops;
}

// The layers of a recorded model over traced ops. The batch's metadata is made by the plain ones, so that the ops' checks hold.
class Traced {
 public:
  Traced(const std::string& model, bool side_streams) : checkpoint_(test::golden_folder(model).string()), ops_(traced_ops(trace_)) {
    LayerRegistry registry;
    const auto make = [this](const LayerContext& c) {
      return default_layers().make({c.checkpoint, c.layer, c.device, ops_, c.options, c.rope_tables, c.communicator, c.side_streams});
    };
    registry.register_layer(checkpoint_.config().architecture, make);
    runner::RunnerOptions options;
    options.layer.limits = {.max_num_batched_tokens = 4096, .max_num_seqs = 65, .max_model_len = 4224};
    options.total_positions = 4224 + 65 * 256;
    options.overlap = side_streams;
    runner_ = std::make_unique<runner::ModelRunner>(checkpoint_, checkpoint_.attention_layers(), std::make_shared<TracedDevice>(trace_),
                                                    default_ops(), registry, options);
  }

  // One trace a layer of a step of these tokens for each request, which begin at `position`; skip_topk: see ForwardArgs.
  std::string run(const std::vector<int64_t>& tokens, int64_t position, bool skip_topk) {
    std::vector<runner::StepRequest> step;
    int64_t total = 0;
    for (const int64_t count : tokens) {
      const int64_t id = next_id_++;
      runner_->add_request(id);
      runner_->pretend_position(id, position);
      step.push_back({id, count});
      total += count;
    }
    runner_->begin_step(step);
    const int64_t hidden = checkpoint_.config().hidden_size;
    const Tensor x(runner_->device(), DType::bf16, {total, hidden}), out(runner_->device(), DType::bf16, {total, hidden});
    std::string text;
    for (size_t l = 0; l < runner_->num_layers(); ++l) {
      trace_.take();
      ForwardArgs extras;
      extras.skip_topk = skip_topk;
      runner_->run_layer(l, x, out, extras);
      text += fmt::format("## layer {} {}\n{}", l, runner_->layer(l).kind(), trace_.take());
    }
    runner_->end_step();
    for (const runner::StepRequest& r : step) runner_->remove_request(r.id);
    return text;
  }

 private:
  Trace trace_;
  Checkpoint checkpoint_;
  OpSet ops_;
  std::unique_ptr<runner::ModelRunner> runner_;
  int64_t next_id_ = 0;
};

class LaunchTrace : public testing::TestWithParam<std::string> {};

TEST_P(LaunchTrace, IsTheRecordedOne) {
  std::string text;
  for (const bool side_streams : {true, false}) {
    Traced traced(GetParam(), side_streams);
    const auto add = [&](const std::string& title, const std::vector<int64_t>& tokens, int64_t position, bool skip_topk = false) {
      text += fmt::format("# {}, {}\n{}", title, side_streams ? "side streams" : "one stream", traced.run(tokens, position, skip_topk));
    };
    add("no tokens", {}, 0);
    for (const int count : {1, 2, 8, 64, 65}) {
      add(fmt::format("{} decode tokens", count), std::vector<int64_t>(static_cast<size_t>(count), 1), 200);
    }
    for (const int64_t count : {2, 65, 4096}) add(fmt::format("{} prefill tokens", count), {count}, 0);
    add("8 decode and 64 prefill tokens", {1, 1, 1, 1, 1, 1, 1, 1, 64}, 100);
    add("1 decode token of a given top-k", {1}, 200, /*skip_topk=*/true);
    add("65 decode tokens of a given top-k", std::vector<int64_t>(65, 1), 200, /*skip_topk=*/true);
  }
  const std::filesystem::path file = test::data_folder() / "layers" / "launches" / (GetParam() + ".txt");
  if (std::getenv("STRATA_UPDATE_LAUNCHES") != nullptr) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::ostringstream recorded;
  recorded << std::ifstream(file).rdbuf();
  EXPECT_EQ(text, recorded.str()) << file;
}

INSTANTIATE_TEST_SUITE_P(Models, LaunchTrace, testing::Values("v4_fp8", "v4_bf16", "mla_v2_lite", "mla_v3", "mla_v32"),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace strata
