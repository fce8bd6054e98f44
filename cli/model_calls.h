// The implementations that a model's layers select on a device, by a step of each kind whose calls are noted and not made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runner/model_plan.h"

namespace strata::cli {

// Calls of one op with one shape, in the order of the layer's first call.
struct ModelCall {
  std::string op, weight, shape;             // as of testkit::RecordedCall
  std::vector<std::string> decode, prefill;  // implementations, each once; empty: no such call in this step

  bool operator==(const ModelCall&) const = default;
};

// Layers with the same calls.
struct LayerCalls {
  std::string kind;  // AttentionLayer::kind(); empty: the metadata of a step, made once for all layers
  int64_t layers = 0;
  std::vector<ModelCall> calls;
};

// A decode step of `requests` requests with one new token each, and a prefill step of one request with `prompt_tokens` new tokens. Each
// request has `context` positions before them.
struct PlannedSteps {
  int64_t requests = 1, prompt_tokens = 1, context = 0;
};

// options: all but the limits.
std::vector<LayerCalls> calls_of(const runner::PlannedModel& model, LayerOptions options, const PlannedSteps& steps);

}  // namespace strata::cli
