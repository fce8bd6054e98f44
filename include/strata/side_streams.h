// Streams next to the caller's, on which layers launch what the rest of a step does not wait for. V4 specification 16.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "strata/owned_stream.h"

namespace strata {

// One set serves all layers of a model, as these run one after the other. On a device whose streams are null (a CPU) there are none, and
// everything runs in order on the caller's stream.
class SideStreams {
 public:
  static constexpr int64_t kStreams = 2;
  static constexpr int64_t kEvents = 18;

  // Throws invalid_argument for a null device, and what making streams and events throws.
  explicit SideStreams(std::shared_ptr<Device> device);

  // Whether work on these streams can overlap the caller's.
  bool concurrent() const { return stream(0).handle != nullptr; }
  // i in [0, kStreams).
  Stream stream(int64_t i) const { return streams_[static_cast<size_t>(i)].get(); }
  // i in [0, kEvents). A layer records them anew in each forward.
  Event event(int64_t i) const { return events_[static_cast<size_t>(i)].get(); }

 private:
  std::deque<OwnedEvent> events_;
  std::deque<OwnedStream> streams_;
};

}  // namespace strata
