// The order of a copy that runs on its own stream: on a device with concurrent streams nothing else keeps it.
#include "batch/staged_upload.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "core/host_device.h"

namespace strata {
namespace {

// Streams and events are numbers, and every call on them is recorded.
class NotedDevice final : public HostDevice {
 public:
  Stream create_stream() override { return {reinterpret_cast<void*>(++streams_)}; }
  Event create_event() override { return {reinterpret_cast<void*>(++events_)}; }
  void record(Event event, Stream stream) override { note("event " + number(event.handle) + " on " + number(stream.handle)); }
  void wait(Event event, Stream stream) override { note(number(stream.handle) + " waits for event " + number(event.handle)); }
  void copy_from_host(void*, const void*, int64_t bytes, Stream stream) override {
    note(std::to_string(bytes) + " bytes on " + number(stream.handle));
  }
  void synchronize(Stream stream) override { note("host waits for " + number(stream.handle)); }

  std::vector<std::string> notes;

 private:
  static std::string number(const void* handle) { return std::to_string(reinterpret_cast<uintptr_t>(handle)); }
  void note(std::string text) { notes.push_back(std::move(text)); }
  uintptr_t streams_ = 0, events_ = 0;
};

// The upload's stream is 1, the caller's 9.
TEST(StagedUpload, CopiesBehindTheCallersWorkAndInFrontOfItsNext) {
  const auto device = std::make_shared<NotedDevice>();
  {
    StagedUpload upload(device, 64);
    upload.wait();
    upload.send(nullptr, 48, {reinterpret_cast<void*>(9)});
  }
  EXPECT_THAT(device->notes, testing::ElementsAre("host waits for 1", "event 1 on 9", "1 waits for event 1", "48 bytes on 1",
                                                  "event 2 on 1", "9 waits for event 2", "host waits for 1"));
}

}  // namespace
}  // namespace strata
