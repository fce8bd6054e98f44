// Streams and events that go away with their owner; a stream after its work.
#pragma once

#include <memory>

#include "strata/device.h"
#include "strata/error.h"

namespace strata {

class OwnedStream {
 public:
  explicit OwnedStream(std::shared_ptr<Device> device) : device_(std::move(device)), stream_(device_->create_stream()) {}
  ~OwnedStream() {
    finish();
    device_->destroy_stream(stream_);
  }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  [[nodiscard]] Stream get() const { return stream_; }
  // Returns when the stream's work is done, or has failed.
  void finish() noexcept {
    try {
      device_->synchronize(stream_);
    } catch (const Error&) {
      // A device that failed does nothing any more.
    }
  }

 private:
  std::shared_ptr<Device> device_;
  Stream stream_;
};

class OwnedEvent {
 public:
  explicit OwnedEvent(std::shared_ptr<Device> device) : device_(std::move(device)), event_(device_->create_event()) {}
  ~OwnedEvent() { device_->destroy_event(event_); }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;

  [[nodiscard]] Event get() const { return event_; }

 private:
  std::shared_ptr<Device> device_;
  Event event_;
};

}  // namespace strata
