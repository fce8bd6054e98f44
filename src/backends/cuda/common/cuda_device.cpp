#include "backends/cuda/common/cuda_device.h"

#include "backends/cuda/common/check.h"
#include "backends/cuda/cuda_ops.h"
#include "core/check.h"

namespace strata::cuda {
namespace {

Capabilities query(int index) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
  Capabilities c;
  c.major = p.major;
  c.minor = p.minor;
  c.num_sms = p.multiProcessorCount;
  c.max_shared_bytes = static_cast<int>(p.sharedMemPerBlockOptin);
  c.l2_bytes = p.l2CacheSize;
  c.memory_bytes = static_cast<int64_t>(p.totalGlobalMem);
  return c;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceId id, const Config& config) : Device(id, config), capabilities_(query(id.index)) {
    cudaDeviceProp p{};
    check(cudaGetDeviceProperties(&p, id.index), "cudaGetDeviceProperties");
    name_ = p.name;
  }

  const Capabilities& capabilities() const { return capabilities_; }

  std::string description() const override {
    const Capabilities& c = capabilities_;
    return fmt::format("{}, compute capability {}.{}, {} SMs, {:.0f} GB", name_, c.major, c.minor, c.num_sms,
                       static_cast<double>(c.memory_bytes) * 1e-9);
  }

  void* allocate(size_t bytes) override {
    DeviceScope scope(id().index);
    void* data = nullptr;
    check(cudaMalloc(&data, bytes == 0 ? 1 : bytes), fmt::format("cudaMalloc of {} bytes", bytes));
    return data;
  }
  void deallocate(void* data) noexcept override { cudaFree(data); }

  void copy_from_host(void* device_dst, const void* host_src, size_t bytes, Stream stream) override {
    check(cudaMemcpyAsync(device_dst, host_src, bytes, cudaMemcpyHostToDevice, native(stream)), "cudaMemcpyAsync to the device");
  }
  void copy_to_host(void* host_dst, const void* device_src, size_t bytes, Stream stream) override {
    check(cudaMemcpyAsync(host_dst, device_src, bytes, cudaMemcpyDeviceToHost, native(stream)), "cudaMemcpyAsync to the host");
  }
  void copy(void* device_dst, const void* device_src, size_t bytes, Stream stream) override {
    check(cudaMemcpyAsync(device_dst, device_src, bytes, cudaMemcpyDeviceToDevice, native(stream)), "cudaMemcpyAsync");
  }
  void fill(void* device_dst, uint8_t value, size_t bytes, Stream stream) override {
    check(cudaMemsetAsync(device_dst, value, bytes, native(stream)), "cudaMemsetAsync");
  }

  Stream create_stream() override {
    DeviceScope scope(id().index);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return {stream};
  }
  void destroy_stream(Stream stream) noexcept override {
    if (stream.handle != nullptr) cudaStreamDestroy(native(stream));
  }
  Event create_event() override {
    DeviceScope scope(id().index);
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return {event};
  }
  void destroy_event(Event event) noexcept override {
    if (event.handle != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event.handle));
  }
  void record(Event event, Stream stream) override {
    check(cudaEventRecord(static_cast<cudaEvent_t>(event.handle), native(stream)), "cudaEventRecord");
  }
  void wait(Event event, Stream stream) override {
    check(cudaStreamWaitEvent(native(stream), static_cast<cudaEvent_t>(event.handle), 0), "cudaStreamWaitEvent");
  }
  void synchronize(Stream stream) override {
    DeviceScope scope(id().index);
    check(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
  }

 private:
  Capabilities capabilities_;
  std::string name_;
};

}  // namespace

bool is_cuda(const Device& device) { return device.id().kind == DeviceKind::cuda; }

const Capabilities& capabilities(const Device& device) { return static_cast<const CudaDevice&>(device).capabilities(); }

DeviceScope::DeviceScope(int index) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != index) check(cudaSetDevice(index), "cudaSetDevice");
}
DeviceScope::~DeviceScope() { cudaSetDevice(previous_); }

std::shared_ptr<Device> make_device(DeviceId id, const Config& config) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) fail(ErrorCode::unsupported, "device {}: no CUDA device: {}", to_string(id), cudaGetErrorString(error));
  if (id.index >= count) fail(ErrorCode::unsupported, "device {}: this machine has {} CUDA devices", to_string(id), count);
  return std::make_shared<CudaDevice>(id, config);
}

}  // namespace strata::cuda
