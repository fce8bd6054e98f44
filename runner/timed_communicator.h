// A communicator that notes the time of its calls.
#pragma once

#include <chrono>
#include <memory>

#include "strata/device.h"
#include "strata/parallel.h"

namespace strata::runner {

// The host waits for the stream's earlier work before the clock starts, and for the sum before it stops, so no graph can hold a call. The
// time is that of the exchange and of waiting for other ranks. One thread calls it.
class TimedCommunicator final : public Communicator {
 public:
  explicit TimedCommunicator(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  void all_reduce_sum(const TensorView& tensor, Device& device, Stream stream) override {
    device.synchronize(stream);
    const auto begin = std::chrono::steady_clock::now();
    communicator_->all_reduce_sum(tensor, device, stream);
    device.synchronize(stream);
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  // Of all calls so far.
  double seconds() const { return seconds_; }

 private:
  std::shared_ptr<Communicator> communicator_;
  double seconds_ = 0;
};

}  // namespace strata::runner
