#include "model_calls.h"

#include <algorithm>

#include "runner/model_runner.h"
#include "testkit/harness/recorded_calls.h"

namespace strata::cli {
namespace {

void add(std::vector<ModelCall>& calls, const std::vector<testkit::RecordedCall>& recorded,
         std::vector<std::string> ModelCall::*implementations) {
  size_t next = 0;  // after the preceding call's entry
  for (const testkit::RecordedCall& each : recorded) {
    auto call = std::find_if(calls.begin(), calls.end(), [&](const ModelCall& known) {
      return known.op == each.op && known.weight == each.weight && known.shape == each.shape;
    });
    if (call == calls.end()) call = calls.insert(calls.begin() + static_cast<int64_t>(next), {each.op, each.weight, each.shape, {}, {}});
    next = static_cast<size_t>(call - calls.begin()) + 1;
    std::vector<std::string>& names = (*call).*implementations;
    if (std::find(names.begin(), names.end(), each.implementation) == names.end()) names.push_back(each.implementation);
  }
}

// Layers that differ by the bytes of their weights alone become one entry.
void merge_equal(std::vector<LayerCalls>& all) {
  for (auto entry = all.begin(); entry != all.end(); ++entry) {
    for (auto other = entry + 1; other != all.end();) {
      if (other->kind != entry->kind || other->calls != entry->calls) {
        ++other;
        continue;
      }
      entry->layers += other->layers;
      other = all.erase(other);
    }
  }
}

}  // namespace

std::vector<LayerCalls> calls_of(const runner::PlannedModel& model, LayerOptions options, const PlannedSteps& steps) {
  options.limits = {.max_num_batched_tokens = std::max(steps.requests, steps.prompt_tokens),
                    .max_num_seqs = steps.requests,
                    .max_model_len = steps.context + std::max<int64_t>(steps.prompt_tokens, 1)};
  std::vector<runner::AlikeLayers> groups = model.alike(options);
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.layer < b.layer; });
  std::vector<int64_t> layers;
  layers.reserve(groups.size());
  std::vector<LayerCalls> result(1);
  for (const runner::AlikeLayers& group : groups) layers.push_back(group.layer);

  testkit::CallRecorder recorder(default_ops(), /*runs=*/false);
  const int64_t positions = std::max(steps.requests * (steps.context + 1), options.limits.max_model_len);
  runner::ModelRunner runner(model.checkpoint(), layers, model.device(), recorder.ops(), default_layers(),
                             {.layer = options, .total_positions = positions, .communicator = nullptr});
  for (size_t l = 0; l < layers.size(); ++l) result.push_back({runner.layer(l).kind(), groups[l].count, {}});

  const auto run_step = [&](int64_t requests, int64_t new_tokens, std::vector<std::string> ModelCall::*implementations) {
    std::vector<runner::StepRequest> step;
    for (int64_t id = 0; id < requests; ++id) {
      runner.add_request(id);
      runner.pretend_position(id, steps.context);
      step.push_back({id, new_tokens});
    }
    add(result[0].calls, recorder.record(runner.stream(), [&] { runner.begin_step(step); }), implementations);
    const Tensor hidden(model.device(), DType::bf16, {requests * new_tokens, model.config().hidden_size});
    const Tensor out(model.device(), DType::bf16, {requests * new_tokens, model.config().hidden_size});
    for (size_t l = 0; l < layers.size(); ++l) {
      add(result[l + 1].calls, recorder.record(runner.stream(), [&] { runner.run_layer(l, hidden, out); }), implementations);
    }
    runner.end_step();
    for (int64_t id = 0; id < requests; ++id) runner.remove_request(id);
  };
  run_step(steps.requests, 1, &ModelCall::decode);
  run_step(1, steps.prompt_tokens, &ModelCall::prefill);
  std::rotate(result.begin(), result.begin() + 1, result.end());  // the metadata last
  merge_equal(result);
  return result;
}

}  // namespace strata::cli
