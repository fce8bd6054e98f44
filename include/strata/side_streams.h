// Streams on which layers run work concurrently with the caller's stream. V4 specification 16.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "strata/owned_stream.h"

namespace strata {

// Side streams and their events. One set serves all layers of a model, because layers run one after the other. On a device whose streams
// are null (a CPU) there are none, and all work runs in order on the caller's stream.
class SideStreams {
 public:
  static constexpr int64_t kStreams = 2;  // side streams of a set
  static constexpr int64_t kEvents = 18;  // events of a set

  // Throws invalid_argument for a null device, and what Device::create_stream and create_event throw.
  explicit SideStreams(const std::shared_ptr<Device>& device);

  // Whether work on the side streams can run concurrently with the caller's stream.
  bool concurrent() const { return stream(0).handle != nullptr; }
  // Side stream i, in [0, kStreams). Null on a CPU.
  Stream stream(int64_t i) const { return streams_[static_cast<size_t>(i)].get(); }
  // Event i, in [0, kEvents). Layers record the events anew in each forward.
  Event event(int64_t i) const { return events_[static_cast<size_t>(i)].get(); }

 private:
  std::deque<OwnedEvent> events_;
  std::deque<OwnedStream> streams_;
};

}  // namespace strata
