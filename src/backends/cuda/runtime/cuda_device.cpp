#include "backends/cuda/runtime/cuda_device.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/probes.h"
#include "core/check.h"
#include "core/memory_pool.h"

namespace strata::cuda {
namespace {

cudaEvent_t native(Event event) { return static_cast<cudaEvent_t>(event.handle); }

class TimingEvent {
 public:
  TimingEvent() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~TimingEvent() { cudaEventDestroy(event_); }
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

MemoryPool::Source memory_source(int index) {
  const auto allocate = [index](size_t bytes, bool must) -> void* {
    const DeviceScope scope(index);
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaSuccess) return data;
    const bool is_full = error == cudaErrorMemoryAllocation;
    if (is_full) cudaGetLastError();
    if (is_full && !must) return nullptr;
    size_t available = 0, total = 0;
    if (is_full) cudaMemGetInfo(&available, &total);
    throw_error(error, fmt::format("cudaMalloc of {} bytes ({} of {} bytes of the device are free)", bytes, available, total));
  };
  // Not by DeviceScope: at process exit these calls may fail, and the failure cannot be reported here. cudaFree waits for the device.
  const auto release = [index](void* data) {
    int previous = index;
    cudaGetDevice(&previous);
    if (previous != index) cudaSetDevice(index);
    cudaFree(data);
    if (previous != index) cudaSetDevice(previous);
  };
  const auto synchronize = [index] {
    const DeviceScope scope(index);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize before memory is used again");
  };
  return {allocate, release, synchronize};
}

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceId id, const Config& config) : Device(id, config), index_(id.index), pool_(memory_source(id.index)) {
    cudaDeviceProp p{};
    check(cudaGetDeviceProperties(&p, index_), "cudaGetDeviceProperties");
    name_ = p.name;
    properties_ = {.compute_major = p.major,
                   .compute_minor = p.minor,
                   .num_sms = p.multiProcessorCount,
                   .max_shared_bytes = static_cast<int64_t>(p.sharedMemPerBlockOptin),
                   .last_level_cache_bytes = p.l2CacheSize,
                   .memory_bytes = static_cast<int64_t>(p.totalGlobalMem)};
  }

  DeviceProperties properties() const override { return properties_; }
  std::string description() const override {
    const DeviceProperties& p = properties_;
    return fmt::format("{}, compute capability {}.{}, {} SMs, {:.0f} GB", name_, p.compute_major, p.compute_minor, p.num_sms,
                       static_cast<double>(p.memory_bytes) * 1e-9);
  }

  void* allocate(int64_t bytes) override {
    // No capture may begin meanwhile: waiting for the device would end it.
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
    DeviceScope scope(index_);
    void* data = nullptr;
    check(cudaHostAlloc(&data, std::max<size_t>(byte_count(bytes), 1), cudaHostAllocPortable),
          fmt::format("cudaHostAlloc of {} bytes", bytes));
    return data;
  }
  void deallocate_host(void* data) noexcept override {
    if (data != nullptr) cudaFreeHost(data);
  }

  void copy_from_host(void* dst, const void* src, int64_t bytes, Stream stream) override {
    copy_bytes(dst, src, bytes, cudaMemcpyHostToDevice, stream, "cudaMemcpyAsync to the device");
  }
  void copy_to_host(void* dst, const void* src, int64_t bytes, Stream stream) override {
    copy_bytes(dst, src, bytes, cudaMemcpyDeviceToHost, stream, "cudaMemcpyAsync to the host");
  }
  void copy(void* dst, const void* src, int64_t bytes, Stream stream) override {
    copy_bytes(dst, src, bytes, cudaMemcpyDeviceToDevice, stream, "cudaMemcpyAsync");
  }
  void fill(void* dst, uint8_t value, int64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    DeviceScope scope(index_);
    check(cudaMemsetAsync(dst, value, byte_count(bytes), cuda::native(stream)), "cudaMemsetAsync");
  }

  Stream create_stream() override {
    DeviceScope scope(index_);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return {stream};
  }
  void destroy_stream(Stream stream) noexcept override {
    if (stream.handle != nullptr) cudaStreamDestroy(cuda::native(stream));
  }
  Event create_event() override {
    DeviceScope scope(index_);
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return {event};
  }
  void destroy_event(Event event) noexcept override {
    if (event.handle != nullptr) cudaEventDestroy(native(event));
  }
  void record(Event event, Stream stream) override {
    DeviceScope scope(index_);
    check(cudaEventRecord(native(event), cuda::native(stream)), "cudaEventRecord");
  }
  void wait(Event event, Stream stream) override {
    DeviceScope scope(index_);
    check(cudaStreamWaitEvent(cuda::native(stream), native(event), 0), "cudaStreamWaitEvent");
  }
  void synchronize(Stream stream) override {
    DeviceScope scope(index_);
    check(cudaStreamSynchronize(cuda::native(stream)), "cudaStreamSynchronize");
  }

  double elapsed_seconds(Stream stream, const std::function<void()>& work) override {
    DeviceScope scope(index_);
    const TimingEvent begin, end;
    check(cudaEventRecord(begin.get(), cuda::native(stream)), "cudaEventRecord");
    work();
    check(cudaEventRecord(end.get(), cuda::native(stream)), "cudaEventRecord");
    check(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

  Graph capture(Stream stream, const std::function<void()>& work) override {
    require(stream.handle != nullptr, "{}: capture: the stream must be a created one, is the default stream", to_string(id()));
    DeviceScope scope(index_);
    std::exception_ptr failure;
    cudaGraph_t graph = nullptr;
    cudaError_t ended = cudaSuccess;
    {
      const Capturing mark(*this);
      check(cudaStreamBeginCapture(cuda::native(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
      ended = cudaStreamEndCapture(cuda::native(stream), &graph);
    }
    if (failure || ended != cudaSuccess) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      if (failure) std::rethrow_exception(failure);
      throw_error(ended, "cudaStreamEndCapture");
    }
    cudaGraphExec_t executable = nullptr;
    const cudaError_t instantiated = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    check(instantiated, "cudaGraphInstantiate");
    return {executable};
  }
  void launch(Graph graph, Stream stream) override {
    DeviceScope scope(index_);
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.handle), cuda::native(stream)), "cudaGraphLaunch");
  }
  void destroy_graph(Graph graph) noexcept override {
    if (graph.handle != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.handle));
  }

  bool probe_read(const void* src, int64_t bytes, void* sink, Stream stream) override {
    read_memory(*this, src, byte_count(bytes), sink, stream);
    return true;
  }
  bool probe_launch(Stream stream) override {
    launch_nothing(*this, stream);
    return true;
  }

 private:
  void copy_bytes(void* dst, const void* src, int64_t bytes, cudaMemcpyKind kind, Stream stream, const char* call) {
    if (bytes == 0) return;
    DeviceScope scope(index_);
    check(cudaMemcpyAsync(dst, src, byte_count(bytes), kind, cuda::native(stream)), call);
  }

  // Marks this thread as capturing during its lifetime.
  class Capturing {
   public:
    explicit Capturing(CudaDevice& device) : device_(device) {
      const std::lock_guard lock(device_.capturing_mutex_);
      device_.capturing_.push_back(std::this_thread::get_id());
    }
    ~Capturing() {
      const std::lock_guard lock(device_.capturing_mutex_);
      device_.capturing_.erase(std::find(device_.capturing_.begin(), device_.capturing_.end(), std::this_thread::get_id()));
    }
    Capturing(const Capturing&) = delete;
    Capturing& operator=(const Capturing&) = delete;

   private:
    CudaDevice& device_;
  };
  // CUDA refuses cudaMalloc while a thread captures, but not memory from the pool: this check keeps allocations out of graphs.
  // With capturing_mutex_ held.
  void refuse_while_capturing(const char* call) const {
    if (std::find(capturing_.begin(), capturing_.end(), std::this_thread::get_id()) == capturing_.end()) return;
    fail(ErrorCode::device_failure, "{}: {} was called while a graph is captured", to_string(id()), call);
  }
  int index_;
  MemoryPool pool_;
  DeviceProperties properties_;
  std::string name_;
  std::mutex capturing_mutex_;
  std::vector<std::thread::id> capturing_;  // threads, each as often as it captures
};

}  // namespace

bool is_cuda(const Device& device) { return device.id().kind == DeviceKind::cuda; }

Capabilities capabilities(const Device& device) {
  const DeviceProperties p = device.properties();
  return {p.compute_major, p.compute_minor, p.num_sms, static_cast<int>(p.max_shared_bytes)};
}

DeviceScope::DeviceScope(int index) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ == index) return;
  check(cudaSetDevice(index), "cudaSetDevice");
  switched_ = true;
}
DeviceScope::~DeviceScope() {
  if (switched_) cudaSetDevice(previous_);
}

std::shared_ptr<Device> make_device(DeviceId id, const Config& config) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    fail(ErrorCode::unsupported, "device {}: no CUDA device: {}", to_string(id), cudaGetErrorString(error));
  }
  if (id.index < 0 || id.index >= count) fail(ErrorCode::unsupported, "device {}: this machine has {} CUDA devices", to_string(id), count);
  return std::make_shared<CudaDevice>(id, config);
}

}  // namespace strata::cuda
