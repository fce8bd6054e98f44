// Devices, streams and events. Every call that may run on an accelerator takes its stream explicitly.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "strata/config.h"
#include "strata/device_id.h"

namespace strata {

// "cpu", "cuda:0", "opencl:1".
std::string to_string(DeviceId id);
// The inverse; "cuda" means "cuda:0". Throws invalid_argument for anything else.
[[nodiscard]] DeviceId parse_device_id(std::string_view text);

// A queue of work on one device. `handle` is the native queue (cudaStream_t, cl_command_queue) or null for the device's
// default queue. A CPU runs every call to its end before returning, so its streams are always null.
struct Stream {
  void* handle = nullptr;
};

// A point in a stream (cudaEvent_t, cl_event) that another stream can wait for.
struct Event {
  void* handle = nullptr;
};

// Work that was captured instead of run, and runs as often as it is launched (cudaGraphExec_t).
struct Graph {
  void* handle = nullptr;
};

// What planning and measuring ask of a device; 0 where it does not apply or is not known.
struct DeviceProperties {
  int32_t compute_major = 0, compute_minor = 0;  // CUDA compute capability
  int32_t num_sms = 0;
  int64_t max_shared_bytes = 0;  // shared memory that a block may have
  int64_t last_level_cache_bytes = 0;
  int64_t memory_bytes = 0;
};

// Several threads may use one at once. Tensors, pools and layers share its ownership; raw memory, streams, events and graphs are given back
// before the last owner goes.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceId id() const { return id_; }
  const Config& config() const { return config_; }
  // One line for people: the chip, its features, memory, threads.
  virtual std::string description() const = 0;
  virtual DeviceProperties properties() const { return {}; }

  // Memory of at least `bytes` bytes aligned to 256. Throws out_of_memory; this and the calls below invalid_argument for bytes below 0.
  // Work on any stream may still use memory that is given back: it is not handed out again before that work is done. deallocate(nullptr)
  // does nothing.
  [[nodiscard]] virtual void* allocate(int64_t bytes) = 0;
  virtual void deallocate(void* data) noexcept = 0;

  // Host memory that copies to and from the device reach without a detour and without waiting for them, aligned to 256. By default
  // ordinary memory. The caller waits for the copies that use it before it gives it back.
  [[nodiscard]] virtual void* allocate_host(int64_t bytes);
  virtual void deallocate_host(void* data) noexcept;

  // Copies and fills are ordered with the other work of `stream`. Host memory must stay valid until it is reached.
  virtual void copy_from_host(void* device_dst, const void* host_src, int64_t bytes, Stream stream) = 0;
  virtual void copy_to_host(void* host_dst, const void* device_src, int64_t bytes, Stream stream) = 0;
  virtual void copy(void* device_dst, const void* device_src, int64_t bytes, Stream stream) = 0;
  virtual void fill(void* device_dst, uint8_t value, int64_t bytes, Stream stream) = 0;

  [[nodiscard]] virtual Stream create_stream() = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;
  [[nodiscard]] virtual Event create_event() = 0;
  virtual void destroy_event(Event event) noexcept = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Event event, Stream stream) = 0;
  // Returns when all work of the stream is done; throws device_failure if any of it failed.
  virtual void synchronize(Stream stream) = 0;

  // Seconds between the first and the last of what work() puts on `stream`; returns when it is done. By default the host's clock around it.
  [[nodiscard]] virtual double elapsed_seconds(Stream stream, const std::function<void()>& work);

  // Records what work() puts on `stream`, a created one, instead of running it; also what goes to other streams that wait for an event of
  // it and that it waits for in the end. Addresses, shapes and everything else the host decides are fixed then; what memory holds is
  // read at each launch. work() must not allocate, synchronise or copy to or from ordinary host memory: device_failure then, and what
  // work() throws passes through; nothing is left capturing. By default unsupported.
  [[nodiscard]] virtual Graph capture(Stream stream, const std::function<void()>& work);
  virtual void launch(Graph graph, Stream stream);
  // Not before its launches are done.
  virtual void destroy_graph(Graph graph) noexcept;

  // What benchmarks measure the machine's limits with. Each returns false, having done nothing, where the device has no such call.
  // Reads `bytes` bytes, a multiple of 64 KiB, at a multiple of 16, and writes at most 4 bytes to sink.
  virtual bool probe_read(const void* device_src, int64_t bytes, void* sink, Stream stream);
  // Launches a kernel that does nothing.
  virtual bool probe_launch(Stream stream);
  // c = a b^T, row-major fp32 [n, n] on the device, by the fastest library that the build has.
  virtual bool probe_product(int64_t n, const float* a, const float* b, float* c, Stream stream);

 protected:
  Device(DeviceId id, Config config) : id_(id), config_(std::move(config)) {}

 private:
  DeviceId id_;
  Config config_;
};

// Throws unsupported when the backend is not in this build or the device is not present; invalid_argument for a number of threads that
// cannot be.
[[nodiscard]] std::shared_ptr<Device> open_device(DeviceId id, const Config& config = {});

}  // namespace strata
