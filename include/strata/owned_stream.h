// Owners of streams and events. A stream's owner waits for its work before destroying it.
#pragma once

#include <memory>

#include "strata/device.h"
#include "strata/error.h"

namespace strata {

// Owns a stream of the device and shares ownership of the device.
class OwnedStream {
 public:
  // Creates the stream. Throws what Device::create_stream throws.
  explicit OwnedStream(std::shared_ptr<Device> device) : device_(std::move(device)), stream_(device_->create_stream()) {}
  // Waits for the stream's work, then destroys the stream.
  ~OwnedStream() {
    finish();
    device_->destroy_stream(stream_);
  }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  // The stream, valid as long as its owner. Null on a CPU.
  [[nodiscard]] Stream get() const { return stream_; }
  // Returns when the stream's work is done or has failed. Never throws.
  void finish() noexcept {
    try {
      device_->synchronize(stream_);
    } catch (const Error&) {
      // A failed device runs no further work.
    }
  }

 private:
  std::shared_ptr<Device> device_;
  Stream stream_;
};

// Owns an event of the device and shares ownership of the device.
class OwnedEvent {
 public:
  // Creates the event. Throws what Device::create_event throws.
  explicit OwnedEvent(std::shared_ptr<Device> device) : device_(std::move(device)), event_(device_->create_event()) {}
  ~OwnedEvent() { device_->destroy_event(event_); }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;

  // The event, valid as long as its owner. Null on a CPU.
  [[nodiscard]] Event get() const { return event_; }

 private:
  std::shared_ptr<Device> device_;
  Event event_;
};

}  // namespace strata
