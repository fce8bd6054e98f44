// plan.h on a device: which kernel a call of sparse_attn_decode has, for all implementations of the list.
#pragma once

#include <memory>

#include "backends/cuda/sparse_attn_decode/sm90/plan.h"
#include "strata/device.h"

namespace strata::cuda::sparse_decode {

// Copies share what they know. Several threads may ask at once.
class Planner {
 public:
  Planner();
  // Clusters of more than kPortableCluster blocks are the exception: not all groups of SMs of all devices, or of a part of one, have room
  // for them. So the device is asked once how many of a size run at a time.
  Plans plans(const Problem& problem, const Device& device) const;
  // The heads of a block by which a call with a schedule goes; 0: the kernels take none.
  int64_t scheduled_heads(const Problem& problem) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace strata::cuda::sparse_decode
