// What handles of streams, events and graphs name.
#pragma once

#include <memory>
#include <optional>

#include "c_api/objects.h"
#include "strata/c/device.h"
#include "strata/owned_stream.h"

namespace strata::c_api {

// A stream that was created here, or an engine's own.
struct StreamObject {
  // One that is created here.
  explicit StreamObject(const std::shared_ptr<Device>& on) : device(on), created(std::in_place, on), stream(created->get()) {}
  // An engine's own.
  StreamObject(std::shared_ptr<Device> on, Stream own) : device(std::move(on)), stream(own) {}

  std::shared_ptr<Device> device;
  std::optional<OwnedStream> created;
  Stream stream;
};
struct EventObject {
  explicit EventObject(const std::shared_ptr<Device>& on) : device(on), event(on) {}

  std::shared_ptr<Device> device;
  OwnedEvent event;
};
struct GraphObject {
  GraphObject(std::shared_ptr<Device> on, Graph g) : device(std::move(on)), graph(g) {}
  ~GraphObject() { device->destroy_graph(graph); }
  GraphObject(const GraphObject&) = delete;
  GraphObject& operator=(const GraphObject&) = delete;

  std::shared_ptr<Device> device;
  Graph graph;
};

// The stream of a handle, which must be one of the device's; the default stream for the null handle. The result keeps the stream alive.
class StreamUse {
 public:
  StreamUse(strata_stream handle, const Device& device);
  operator Stream() const { return owner_ ? owner_->stream : Stream{}; }

 private:
  std::shared_ptr<StreamObject> owner_;
};

}  // namespace strata::c_api
