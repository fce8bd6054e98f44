#include "backends/opencl/runtime/opencl_device.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/check.h"
#include "core/check.h"
#include "core/memory_pool.h"

namespace strata::opencl {
namespace {

std::string_view name_of(ModuleForm form) {
  switch (form) {
    case ModuleForm::spirv: return "SPIR-V";
    case ModuleForm::bitcode: return "LLVM bitcode";
    case ModuleForm::ptx: return "PTX";
    case ModuleForm::none: break;
  }
  return "no modules";
}

// A point on a queue. Its time is read when it has completed.
class Marker {
 public:
  explicit Marker(cl_command_queue queue) {
    check(api().clEnqueueMarkerWithWaitList(queue, 0, nullptr, &event_), "clEnqueueMarkerWithWaitList");
  }
  ~Marker() { api().clReleaseEvent(event_); }
  Marker(const Marker&) = delete;
  Marker& operator=(const Marker&) = delete;
  int64_t nanoseconds() const {
    cl_ulong time = 0;
    check(api().clGetEventProfilingInfo(event_, CL_PROFILING_COMMAND_END, sizeof time, &time, nullptr), "clGetEventProfilingInfo");
    return static_cast<int64_t>(time);
  }

 private:
  cl_event event_ = nullptr;
};

MemoryPool::Source memory_source(Runtime& runtime, DeviceId id) {
  return {.allocate = [&runtime, id](size_t bytes, bool must) -> void* {
            void* const data = runtime.memory().allocate(bytes);
            if (data == nullptr && must) {
              fail(ErrorCode::out_of_memory,
                   "{}: allocation of {} bytes failed; the device has {} bytes of memory, in allocations of at most {}", to_string(id),
                   bytes, runtime.capabilities().memory_bytes, runtime.capabilities().max_allocation_bytes);
            }
            return data;
          },
          .release =
              [&runtime](void* data) {
                // clSVMFree does not wait for kernels. After a failure of a queue there is nothing to wait for.
                try {
                  runtime.finish();
                } catch (const Error&) {
                }
                runtime.memory().release(data);
              },
          .synchronize = [&runtime] { runtime.finish(); }};
}

class OpenClDevice final : public Device {
 public:
  OpenClDevice(DeviceId id, const Config& config, Runtime& runtime)
      : Device(id, config), runtime_(runtime), pool_(memory_source(runtime, id)) {}

  std::string description() const override {
    const Capabilities& c = runtime_.capabilities();
    return fmt::format("{}, {}, driver {}, {}, {}, sub-groups {}, matrix engine {}, {} compute units, {:.0f} GB", c.name, c.version,
                       c.driver, name_of(c.form), c.has_usm ? "unified shared memory" : "shared virtual memory",
                       c.subgroup_size != 0 ? fmt::format("of {}", c.subgroup_size) : "none", c.has_matrix_engine ? "yes" : "no",
                       c.compute_units, static_cast<double>(c.memory_bytes) * 1e-9);
  }
  DeviceProperties properties() const override {
    const Capabilities& c = runtime_.capabilities();
    return {.num_sms = static_cast<int32_t>(c.compute_units),
            .max_shared_bytes = c.local_memory_bytes,
            .last_level_cache_bytes = c.cache_bytes,
            .memory_bytes = c.memory_bytes};
  }

  void* allocate(int64_t bytes) override {
    // Locked, so that no capture begins meanwhile: a wait during a capture is an error.
    const std::lock_guard lock(capturing_mutex_);
    refuse_while_capturing("allocate");
    return pool_.allocate(byte_count(bytes), /*may_synchronize=*/capturing_.empty());
  }
  void deallocate(void* data) noexcept override { pool_.deallocate(data); }
  void* allocate_host(int64_t bytes) override {
    {
      const std::lock_guard lock(capturing_mutex_);
      refuse_while_capturing("allocate_host");
    }
    void* const data = runtime_.memory().allocate_host(byte_count(bytes));
    if (data == nullptr) fail(ErrorCode::out_of_memory, "{}: allocation of {} bytes of host memory failed", to_string(id()), bytes);
    return data;
  }
  void deallocate_host(void* data) noexcept override { runtime_.memory().release_host(data); }

  void copy_from_host(void* dst, const void* src, int64_t bytes, Stream stream) override { copy_host(dst, src, src, bytes, stream); }
  void copy_to_host(void* dst, const void* src, int64_t bytes, Stream stream) override { copy_host(dst, src, dst, bytes, stream); }
  void copy(void* dst, const void* src, int64_t bytes, Stream stream) override {
    const size_t count = byte_count(bytes);
    if (count == 0) return;
    runtime_.put(runtime_.queue(stream), {.kind = Command::Kind::copy, .dst = dst, .src = src, .bytes = count});
  }
  void fill(void* dst, uint8_t value, int64_t bytes, Stream stream) override {
    const size_t count = byte_count(bytes);
    if (count == 0) return;
    runtime_.put(runtime_.queue(stream), {.kind = Command::Kind::fill, .dst = dst, .bytes = count, .value = value});
  }

  Stream create_stream() override { return {runtime_.create_queue()}; }
  void destroy_stream(Stream stream) noexcept override { runtime_.destroy_queue(static_cast<Queue*>(stream.handle)); }
  Event create_event() override { return {new EventState}; }
  void destroy_event(Event event) noexcept override {
    auto* const state = static_cast<EventState*>(event.handle);
    if (state == nullptr) return;
    if (state->native != nullptr) api().clReleaseEvent(state->native);
    delete state;
  }
  void record(Event event, Stream stream) override {
    EventState& state = *static_cast<EventState*>(event.handle);
    Queue& queue = runtime_.queue(stream);
    cl_event marker = nullptr;
    if (queue.recording == nullptr) {
      check(api().clEnqueueMarkerWithWaitList(queue.native, 0, nullptr, &marker), "clEnqueueMarkerWithWaitList");
      check(api().clFlush(queue.native), "clFlush");  // because another queue may wait for it
    }
    if (state.native != nullptr) api().clReleaseEvent(state.native);
    state = {.native = marker};
    if (queue.recording != nullptr) state = {.capture = queue.recording->id(), .mark = queue.recording->mark(queue)};
  }
  void wait(Event event, Stream stream) override {
    const EventState& state = *static_cast<EventState*>(event.handle);
    Queue& queue = runtime_.queue(stream);
    if (state.capture != 0) {
      Recording* const recording = recording_of(state.capture);
      if (recording == nullptr || (queue.recording != nullptr && queue.recording != recording))
        fail(ErrorCode::device_failure, "{}: wait: the event was recorded in a capture that the stream is not in", to_string(id()));
      return recording->wait(queue, state.mark);
    }
    if (state.native == nullptr) return;  // never recorded
    if (queue.recording != nullptr)
      fail(ErrorCode::device_failure, "{}: wait: the stream is captured, and the event was recorded outside the capture", to_string(id()));
    check(api().clEnqueueBarrierWithWaitList(queue.native, 1, &state.native, nullptr), "clEnqueueBarrierWithWaitList");
  }
  void synchronize(Stream stream) override {
    Queue& queue = runtime_.queue(stream);
    if (queue.recording != nullptr) {
      queue.recording->spoil("synchronize");
      fail(ErrorCode::device_failure, "{}: synchronize was called while a graph is captured", to_string(id()));
    }
    check(api().clFinish(queue.native), "clFinish");
  }

  double elapsed_seconds(Stream stream, const std::function<void()>& work) override {
    const cl_command_queue queue = runtime_.queue(stream).native;
    const Marker begin(queue);
    work();
    const Marker end(queue);
    check(api().clFinish(queue), "clFinish");
    return static_cast<double>(end.nanoseconds() - begin.nanoseconds()) * 1e-9;
  }

  Graph capture(Stream stream, const std::function<void()>& work) override {
    require(stream.handle != nullptr, "{}: capture: the stream must be a created one, is the default stream", to_string(id()));
    Queue& queue = runtime_.queue(stream);
    if (queue.recording != nullptr) fail(ErrorCode::device_failure, "{}: capture: the stream is captured already", to_string(id()));
    Recording::Taken taken;
    {
      Recording recording(queue);
      const Capturing mark(*this, &recording);
      work();
      taken = recording.take();
    }
    std::vector<cl_command_queue> queues;
    for (size_t i = 1; i < taken.num_queues; ++i) queues.push_back(runtime_.create_native_queue());
    return {new Replay(std::move(taken), std::move(queues))};
  }
  void launch(Graph graph, Stream stream) override {
    Queue& queue = runtime_.queue(stream);
    if (queue.recording != nullptr) fail(ErrorCode::device_failure, "{}: launch: the stream is captured", to_string(id()));
    static_cast<Replay*>(graph.handle)->launch(runtime_.memory(), queue.native);
  }
  void destroy_graph(Graph graph) noexcept override { delete static_cast<Replay*>(graph.handle); }

 private:
  void copy_host(void* dst, const void* src, const void* host, int64_t bytes, Stream stream) {
    const size_t count = byte_count(bytes);
    if (count == 0) return;
    Queue& queue = runtime_.queue(stream);
    if (queue.recording != nullptr && !runtime_.memory().is_host(host, count)) {
      fail(ErrorCode::device_failure, "{}: a copy to or from ordinary host memory was called while a graph is captured", to_string(id()));
    }
    runtime_.put(queue, {.kind = Command::Kind::copy, .dst = dst, .src = src, .bytes = count});
  }

  // While it lives, this thread is capturing.
  struct Capture {
    std::thread::id thread;
    Recording* recording;
  };
  class Capturing {
   public:
    Capturing(OpenClDevice& device, Recording* recording) : device_(device), recording_(recording) {
      const std::lock_guard lock(device_.capturing_mutex_);
      device_.capturing_.push_back({std::this_thread::get_id(), recording});
    }
    ~Capturing() {
      const std::lock_guard lock(device_.capturing_mutex_);
      std::erase_if(device_.capturing_, [&](const Capture& c) { return c.recording == recording_; });
    }
    Capturing(const Capturing&) = delete;
    Capturing& operator=(const Capturing&) = delete;

   private:
    OpenClDevice& device_;
    Recording* recording_;
  };
  // Requires capturing_mutex_.
  void refuse_while_capturing(const char* call) const {
    for (const Capture& c : capturing_) {
      if (c.thread == std::this_thread::get_id())
        fail(ErrorCode::device_failure, "{}: {} was called while a graph is captured", to_string(id()), call);
    }
  }
  // Null if the capture has ended.
  Recording* recording_of(uint64_t capture) {
    const std::lock_guard lock(capturing_mutex_);
    const auto found = std::find_if(capturing_.begin(), capturing_.end(), [&](const Capture& c) { return c.recording->id() == capture; });
    return found == capturing_.end() ? nullptr : found->recording;
  }

  Runtime& runtime_;
  MemoryPool pool_;
  std::mutex capturing_mutex_;
  std::vector<Capture> capturing_;
};

}  // namespace

bool is_opencl(const Device& device) { return device.id().kind == DeviceKind::opencl; }

const Capabilities& capabilities(const Device& device) {
  static const Capabilities planned;
  const Runtime* const runtime = opened_runtime(device.id().index);
  return runtime == nullptr ? planned : runtime->capabilities();
}

void launch(const ExecutionContext& context, const KernelId& id, const void* call, size_t bytes, const Range& range) {
  Runtime& runtime = *opened_runtime(context.device.id().index);
  runtime.launch(id, call, bytes, range, runtime.queue(context.stream), context.device.config().opencl_cache);
}

std::shared_ptr<Device> make_device(DeviceId id, const Config& config) {
  return std::make_shared<OpenClDevice>(id, config, open_runtime(id.index, config));
}

}  // namespace strata::opencl
