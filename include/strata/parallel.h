// Tensor parallelism: heads, groups and output columns are split over ranks; caches are replicated. V4 specification 4.3.
#pragma once

#include "strata/tensor.h"

namespace strata {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // In-place sum over all ranks of a contiguous bf16 or f32 tensor, ordered with the other work of the stream. A layer calls it once at the
  // end of every forward, dummy runs and steps without tokens included, so that ranks stay in step. What it throws passes through.
  virtual void all_reduce_sum(const TensorView& tensor, Device& device, Stream stream) = 0;
};

// One process, one rank: nothing to add.
class SingleProcessCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(const TensorView&, Device&, Stream) override {}
};

}  // namespace strata
