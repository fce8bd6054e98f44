// How many requests and positions fit a device's memory.
#pragma once

#include "cache_plan.h"
#include "runner/model_plan.h"

namespace strata::cli {

// All bytes are of one rank.
class PlanFit {
 public:
  // options: with the limits of the plan. A step has room for their tokens, and for one token of every request.
  PlanFit(const runner::PlannedModel& model, const LayerOptions& options);

  // Weights, rotary tables, workspace and metadata within the plan's limits, of the rank that takes most.
  runner::PlannedMemory memory() const { return memory(options_); }

  // The most requests of `context` positions, and the most positions of each of `requests`, in `bytes`; at most `most`, 0 when none fits.
  int64_t most_requests(int64_t bytes, int64_t context, int64_t most) const;
  int64_t most_positions(int64_t bytes, int64_t requests, int64_t most) const;

 private:
  runner::PlannedMemory memory(const LayerOptions& options) const;
  bool fits(int64_t bytes, int64_t requests, int64_t context) const;

  const runner::PlannedModel& model_;
  LayerOptions options_;
  CachePlan caches_;
  std::vector<std::vector<runner::AlikeLayers>> alike_;  // of each rank that is counted
};

}  // namespace strata::cli
