#include "backends/cuda/all_reduce/peer_buffers.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <mutex>
#include <random>

#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "core/check.h"
#include "core/host_device.h"

namespace strata::cuda::all_reduce {
namespace {

// Buffers of this process, for ranks that are its threads: CUDA IPC opens no handle in the process that made it.
class Registry {
 public:
  void add(const std::shared_ptr<Buffer>& buffer) {
    const std::lock_guard lock(mutex_);
    buffers_[buffer->data()] = buffer;
  }
  std::shared_ptr<Buffer> find(std::byte* data) {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(data);
    return found == buffers_.end() ? nullptr : found->second.lock();
  }
  // No two processes have the same, also in containers, where process numbers repeat.
  uint64_t process() const { return process_; }

 private:
  static uint64_t draw() {
    std::random_device random;
    return (uint64_t{random()} << 32) | random();
  }
  std::mutex mutex_;
  std::map<std::byte*, std::weak_ptr<Buffer>> buffers_;
  const uint64_t process_ = draw();
};
Registry& registry() {
  static Registry all;
  return all;
}

// What a rank says of its buffer.
struct Card {
  uint64_t process;
  std::byte* data;
  int32_t device;
  cudaUUID_t gpu;
  cudaIpcMemHandle_t handle;
};

template <class T>
std::vector<T> gathered(Collectives& host, T own) {
  HostDevice memory;
  std::vector<T> all(static_cast<size_t>(host.size()));
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  host.all_gather(TensorView::contiguous(&own, DType::u8, memory.id(), {1, kBytes}),
                  TensorView::contiguous(all.data(), DType::u8, memory.id(), {host.size(), kBytes}), memory, {});
  return all;
}

// Of a GPU that may have another number, or none, in this process.
int device_of(const cudaUUID_t& gpu) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    check(cudaGetDeviceProperties(&p, i), "cudaGetDeviceProperties");
    if (std::memcmp(&p.uuid, &gpu, sizeof gpu) == 0) return i;
  }
  return -1;
}

}  // namespace

Buffer::Buffer(int device, size_t bytes) : device_(device) {
  const DeviceScope scope(device_);
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "cudaMalloc of the all-reduce's buffer");
  data_ = static_cast<std::byte*>(data);
  check(cudaMemset(data, 0, bytes), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}
Buffer::~Buffer() {
  int previous = device_;
  cudaGetDevice(&previous);
  cudaSetDevice(device_);
  cudaFree(data_);
  cudaSetDevice(previous);
}

PeerBuffers::PeerBuffers(Collectives& host, int device, size_t capacity) : device_(device) {
  const DeviceScope scope(device);
  const auto own = std::make_shared<Buffer>(device, buffer_bytes(capacity));
  registry().add(own);
  held_.push_back(own);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  Card card{registry().process(), own->data(), device, properties.uuid, {}};
  check(cudaIpcGetMemHandle(&card.handle, own->data()), "cudaIpcGetMemHandle");
  const std::vector<Card> cards = gathered(host, card);

  // Ranks agree before anything is mapped, so that none waits for one that has refused.
  int32_t unreachable = -1;
  for (int32_t rank = 0; rank < host.size() && unreachable < 0; ++rank) {
    const int peer = device_of(cards[static_cast<size_t>(rank)].gpu);
    int reached = peer == device ? 1 : 0;
    if (peer >= 0 && peer != device) check(cudaDeviceCanAccessPeer(&reached, device, peer), "cudaDeviceCanAccessPeer");
    if (reached == 0) unreachable = rank;
  }
  const std::vector<int32_t> answers = gathered(host, unreachable);
  for (int32_t rank = 0; rank < host.size(); ++rank) {
    if (answers[static_cast<size_t>(rank)] < 0) continue;
    fail(ErrorCode::unsupported, "the GPU of rank {} cannot reach the memory of rank {}'s", rank, answers[static_cast<size_t>(rank)]);
  }

  for (int rank = 0; rank < host.size(); ++rank) {
    const Card& other = cards[static_cast<size_t>(rank)];
    if (other.process != card.process) {
      void* data = nullptr;
      check(cudaIpcOpenMemHandle(&data, other.handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
      opened_.push_back(static_cast<std::byte*>(data));
      mapped_.push_back(static_cast<std::byte*>(data));
      continue;
    }
    if (other.device != device) {
      const cudaError_t error = cudaDeviceEnablePeerAccess(other.device, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else {
        check(error, "cudaDeviceEnablePeerAccess");
      }
    }
    held_.push_back(registry().find(other.data));
    mapped_.push_back(other.data);
  }
  HostDevice memory;
  host.barrier(memory, {});  // no rank gives its buffer back before the others hold it
}

PeerBuffers::~PeerBuffers() {
  int previous = device_;
  cudaGetDevice(&previous);
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  for (std::byte* data : opened_) cudaIpcCloseMemHandle(data);
  cudaSetDevice(previous);
}

}  // namespace strata::cuda::all_reduce
