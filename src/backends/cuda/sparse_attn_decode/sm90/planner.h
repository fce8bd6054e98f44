// plan.h on a device: selects the kernel of a call of sparse_attn_decode, for all implementations of the list.
#pragma once

#include <memory>

#include "backends/cuda/sparse_attn_decode/sm90/plan.h"
#include "strata/device.h"

namespace strata::cuda::sparse_decode {

// Copies share a cache. Thread-safe.
class Planner {
 public:
  Planner();
  // Clusters of more than kPortableCluster CTAs are an exception: not all GPCs of all devices, or of a part of one, have room for them. So
  // the device is queried once for the number of such clusters that run at once.
  Plans plans(const Problem& problem, const Device& device) const;
  // Heads of a CTA for a call with a schedule; 0: the kernels take no schedule.
  int64_t scheduled_heads(const Problem& problem) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace strata::cuda::sparse_decode
