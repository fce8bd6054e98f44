// What handles of streams, events and graphs name.
#pragma once

#include <memory>

#include "c_api/objects.h"
#include "strata/c/device.h"

namespace strata::c_api {

// A stream that was created here, or an engine's own.
struct StreamObject {
  StreamObject(std::shared_ptr<Device> on, Stream s, bool created) : device(std::move(on)), stream(s), is_created(created) {}
  ~StreamObject();
  StreamObject(const StreamObject&) = delete;
  StreamObject& operator=(const StreamObject&) = delete;

  std::shared_ptr<Device> device;
  Stream stream;
  bool is_created;
};
struct EventObject {
  explicit EventObject(std::shared_ptr<Device> on) : device(std::move(on)), event(device->create_event()) {}
  ~EventObject() { device->destroy_event(event); }
  EventObject(const EventObject&) = delete;
  EventObject& operator=(const EventObject&) = delete;

  std::shared_ptr<Device> device;
  Event event;
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
