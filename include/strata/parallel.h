// Tensor parallelism: heads, groups and output columns are split over ranks; caches are replicated. V4 specification 4.3.
#pragma once

#include "strata/tensor.h"

namespace strata {

// The collective operations that layers need; implemented by the caller for size() > 1.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // This rank, in [0, size()).
  virtual int rank() const = 0;
  // The number of ranks.
  virtual int size() const = 0;
  // In-place sum over all ranks of a contiguous bf16 or f32 tensor, ordered with the other work of the stream. A layer calls it exactly
  // once, at the end of every forward, so that ranks stay in step. This includes dummy runs and steps without tokens. Exceptions pass
  // through the layer.
  virtual void all_reduce_sum(const TensorView& tensor, Device& device, Stream stream) = 0;
};

// For a single rank: the sum over ranks is the tensor itself.
class SingleProcessCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(const TensorView&, Device&, Stream) override {}
};

}  // namespace strata
