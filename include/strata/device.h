// Devices, streams, events and graphs. Every call that may run on an accelerator takes its stream explicitly.
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
// The inverse of to_string; "cuda" means "cuda:0". Throws invalid_argument for any other text.
[[nodiscard]] DeviceId parse_device_id(std::string_view text);

// A queue of work on one device. A CPU finishes every call before it returns, so its streams are always null.
struct Stream {
  void* handle = nullptr;  // CUDA: the cudaStream_t; OpenCL: of create_stream() alone; null: the device's default queue
};

// A point in a stream that other streams can wait for.
struct Event {
  void* handle = nullptr;  // the native event; null on a CPU
};

// Captured work, which can be launched any number of times.
struct Graph {
  void* handle = nullptr;  // the native graph (cudaGraphExec_t)
};

// Properties that planning and benchmarks use. 0: does not apply or is unknown.
struct DeviceProperties {
  int32_t compute_major = 0;           // CUDA compute capability: 9 of 9.0
  int32_t compute_minor = 0;           // CUDA compute capability: 0 of 9.0
  int32_t num_sms = 0;                 // streaming multiprocessors
  int64_t max_shared_bytes = 0;        // shared memory that one thread block may use
  int64_t last_level_cache_bytes = 0;  // a GPU: the L2 cache
  int64_t memory_bytes = 0;            // device memory, used or not
};

// One device of one backend. Thread-safe. Tensors, pools and layers share ownership of their device. The caller destroys raw memory,
// streams, events and graphs before the last owner of the device.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Kind and index.
  DeviceId id() const { return id_; }
  // The device's copy of the settings that it was opened with.
  const Config& config() const { return config_; }
  // One line for users: the chip, its features, memory, threads.
  virtual std::string description() const = 0;
  // What is known of the chip. The default implementation knows nothing.
  virtual DeviceProperties properties() const { return {}; }

  // Device memory of at least `bytes` bytes, aligned to 256. Throws out_of_memory. Throws invalid_argument for bytes < 0, as the functions
  // below do.
  [[nodiscard]] virtual void* allocate(int64_t bytes) = 0;
  // Returns memory of allocate(). May be called while work on any stream still uses the memory: it is not reused before that work is done.
  // Null: does nothing.
  virtual void deallocate(void* data) noexcept = 0;

  // Host memory aligned to 256 that the device can copy directly and asynchronously (pinned). The default implementation returns ordinary
  // memory. Throws as allocate() does.
  [[nodiscard]] virtual void* allocate_host(int64_t bytes);
  // Returns memory of allocate_host(). The caller first waits for the copies that use it. Null: does nothing.
  virtual void deallocate_host(void* data) noexcept;

  // Copies `bytes` bytes from host to device memory. Copies and fills are ordered with the other work of `stream`. Host memory must stay
  // valid until the stream has finished the copy.
  virtual void copy_from_host(void* device_dst, const void* host_src, int64_t bytes, Stream stream) = 0;
  // Copies `bytes` bytes from device to host memory. The host may read them after synchronize().
  virtual void copy_to_host(void* host_dst, const void* device_src, int64_t bytes, Stream stream) = 0;
  // Copies `bytes` bytes within device memory. The ranges do not overlap.
  virtual void copy(void* device_dst, const void* device_src, int64_t bytes, Stream stream) = 0;
  // Sets `bytes` bytes of device memory to `value`.
  virtual void fill(void* device_dst, uint8_t value, int64_t bytes, Stream stream) = 0;

  // A new stream; null on a device that has no streams (a CPU). Throws device_failure.
  [[nodiscard]] virtual Stream create_stream() = 0;
  // The work of the stream must have finished (OwnedStream waits for it). Null: does nothing.
  virtual void destroy_stream(Stream stream) noexcept = 0;
  // A new event; null on a device that has no streams. Throws device_failure.
  [[nodiscard]] virtual Event create_event() = 0;
  // Null: does nothing.
  virtual void destroy_event(Event event) noexcept = 0;
  // Marks the stream's current end. Does not block the host.
  virtual void record(Event event, Stream stream) = 0;
  // Makes later work of the stream wait for the mark of record(). Does not block the host.
  virtual void wait(Event event, Stream stream) = 0;
  // Returns when all work of the stream is done. Throws device_failure if any of that work failed.
  virtual void synchronize(Stream stream) = 0;

  // Seconds between the start of the first and the end of the last operation that work() enqueues on `stream`. Returns when these are done.
  // The default implementation measures with the host's clock.
  [[nodiscard]] virtual double elapsed_seconds(Stream stream, const std::function<void()>& work);

  // Captures what work() enqueues on `stream` instead of running it. `stream` is a created one. Work on another stream is captured too if
  // that stream waits for an event of `stream` and `stream` waits for it at the end.
  // Addresses, shapes and all host-side decisions are fixed at capture; memory contents are read at each launch.
  // work() must not allocate, synchronise, or copy to or from ordinary host memory: device_failure. An exception of work() passes through.
  // In both cases the capture is ended. The default implementation throws unsupported.
  [[nodiscard]] virtual Graph capture(Stream stream, const std::function<void()>& work);
  // Enqueues a captured graph on `stream`. By default unsupported.
  virtual void launch(Graph graph, Stream stream);
  // All launches of the graph must have finished.
  virtual void destroy_graph(Graph graph) noexcept;

  // Probes measure the machine's limits for benchmarks. Each returns false, without doing anything, where the device has no such call.
  // Reads `bytes` bytes, a multiple of 64 KiB, from an address that is a multiple of 16; writes at most 4 bytes to sink.
  virtual bool probe_read(const void* device_src, int64_t bytes, void* sink, Stream stream);
  // Probe: launches an empty kernel.
  virtual bool probe_launch(Stream stream);
  // Probe: c = a b^T, row-major fp32 [n, n] on the device, with the fastest library of the build.
  virtual bool probe_product(int64_t n, const float* a, const float* b, float* c, Stream stream);

 protected:
  // For backends.
  Device(DeviceId id, Config config) : id_(id), config_(std::move(config)) {}

 private:
  DeviceId id_;
  Config config_;
};

// Opens a device. Throws unsupported when the backend is not in this build or the device is not present; invalid_argument for a number of
// threads outside the supported range.
[[nodiscard]] std::shared_ptr<Device> open_device(DeviceId id, const Config& config = {});

}  // namespace strata
