// What `strata plan` says, for people and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cache_plan.h"
#include "common.h"
#include "runner/model_plan.h"

namespace strata::cli {

// What one rank takes.
struct Plan {
  std::string model, model_type, device;
  std::vector<std::string> unknown_keys;
  BatchLimits limits;
  int64_t tp = 1;
  int64_t num_layers = 0;      // with those that predict further tokens
  int64_t num_mtp_layers = 0;  // which are these
  CachePlan caches;
  int64_t cache_bytes = 0;
  runner::PlannedMemory rest;

  int64_t total() const { return cache_bytes + rest.weight_bytes() + rest.workspace_bytes(); }
  // "one of 8 tensor-parallel ranks"; empty without tensor parallelism.
  std::string rank() const;
};

struct Fit {
  int64_t memory = 0, reserve = 0;  // reserve < memory
  int64_t most_requests = 0;        // of the plan's positions
  int64_t most_positions = 0;       // of each of the plan's requests

  int64_t usable() const { return memory - reserve; }
  bool holds(const Plan& plan) const { return plan.total() <= usable(); }
  // What weights and workspace leave; below 0 where they do not fit.
  int64_t for_caches(const Plan& plan) const { return usable() - (plan.total() - plan.cache_bytes); }
};

// Every number is an integer.
Json plan_json(const Plan& plan, const std::optional<Fit>& fit);
void print_plan(const Plan& plan, const std::optional<Fit>& fit);

}  // namespace strata::cli
