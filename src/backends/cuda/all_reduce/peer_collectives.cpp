// The communicator over peer memory: sums by kernels of its own, everything else by the host's communicator.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "backends/cuda/all_reduce/peer_buffers.h"
#include "backends/cuda/peer.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "core/check.h"

namespace strata::cuda {
namespace {

using all_reduce::Call;
using all_reduce::Shots;

constexpr int64_t kCapacity = int64_t{16} << 20;  // bytes of a launch by two shots

// Bytes up to which one shot is chosen. Of two ranks both send the same bytes, and one shot waits once.
int64_t one_shot_bytes(int size) {
  const int64_t most = all_reduce::most_bytes(Shots::one, kCapacity, size);
  return size == 2 ? most : std::min<int64_t>(most, (int64_t{1} << 20) / size);
}

// A word of host memory that kernels write.
class FailureWord {
 public:
  explicit FailureWord(int device) {
    const DeviceScope scope(device);
    void* data = nullptr;
    check(cudaHostAlloc(&data, sizeof(uint32_t), cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
    word_ = static_cast<volatile uint32_t*>(data);
    *word_ = 0;
    check(cudaHostGetDevicePointer(&device_word_, data, 0), "cudaHostGetDevicePointer");
  }
  ~FailureWord() { cudaFreeHost(const_cast<uint32_t*>(word_)); }
  FailureWord(const FailureWord&) = delete;
  FailureWord& operator=(const FailureWord&) = delete;
  uint32_t value() const { return *word_; }
  uint32_t* on_device() const { return static_cast<uint32_t*>(device_word_); }

 private:
  volatile uint32_t* word_ = nullptr;
  void* device_word_ = nullptr;
};

class PeerCollectives final : public Collectives {
 public:
  PeerCollectives(std::shared_ptr<Collectives> host, std::shared_ptr<Device> device, double timeout_seconds)
      : host_(std::move(host)),
        device_(std::move(device)),
        timeout_seconds_(timeout_seconds),
        failure_(device_->id().index),
        buffers_(*host_, device_->id().index, kCapacity) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  void all_reduce_sum(const TensorView& tensor, Device& device, Stream stream) override {
    check();
    const bool fits = device.id() == device_->id() && tensor.is_contiguous() &&
                      (tensor.dtype == DType::bf16 || tensor.dtype == DType::f32) && tensor.bytes() % all_reduce::kVectorBytes == 0 &&
                      reinterpret_cast<uintptr_t>(tensor.data) % all_reduce::kVectorBytes == 0;
    // Sizes are equal on all ranks, and tensors of allocations are aligned. What is not goes over the host, whose checks name what is
    // wrong.
    if (!fits) return host_->all_reduce_sum(tensor, device, stream);
    if (size() == 1) return;
    const DeviceScope scope(device_->id().index);
    const Shots shots = tensor.bytes() <= one_shot_bytes(size()) ? Shots::one : Shots::two;
    const int64_t most = all_reduce::most_bytes(shots, kCapacity, size());
    for (int64_t offset = 0; offset < tensor.bytes(); offset += most) {
      Call call{};
      for (int rank = 0; rank < size(); ++rank) call.buffers[rank] = buffers_.of(rank);
      call.tensor = static_cast<std::byte*>(tensor.data) + offset;
      call.vectors = std::min(most, tensor.bytes() - offset) / all_reduce::kVectorBytes;
      call.part_vectors = shots == Shots::one ? call.vectors : (call.vectors + size() - 1) / size();
      call.capacity = kCapacity;
      call.rank = rank();
      call.size = size();
      call.failure = failure_.on_device();
      call.timeout_ns = static_cast<uint64_t>(timeout_seconds_ * 1e9);
      all_reduce::launch(call, shots, tensor.dtype == DType::bf16, stream.handle);
    }
  }
  void all_gather(const TensorView& in, const TensorView& out, Device& device, Stream stream) override {
    check();
    host_->all_gather(in, out, device, stream);
  }
  void reduce_scatter_sum(const TensorView& in, const TensorView& out, Device& device, Stream stream) override {
    check();
    host_->reduce_scatter_sum(in, out, device, stream);
  }
  void barrier(Device& device, Stream stream) override {
    check();
    host_->barrier(device, stream);
    check();
  }
  void abort(const std::string& reason) noexcept override { host_->abort(reason); }
  void check() override {
    if (const uint32_t failure = failure_.value(); failure != 0) {
      const std::string text = fmt::format("all_reduce_sum: rank {} has not arrived within {} s", failure - 1, timeout_seconds_);
      host_->abort(text);
    }
    host_->check();
  }

 private:
  std::shared_ptr<Collectives> host_;
  std::shared_ptr<Device> device_;
  double timeout_seconds_;
  FailureWord failure_;
  all_reduce::PeerBuffers buffers_;
};

}  // namespace

std::shared_ptr<Collectives> make_peer_communicator(std::shared_ptr<Collectives> host, std::shared_ptr<Device> device,
                                                    double timeout_seconds) {
  return std::make_shared<PeerCollectives>(std::move(host), std::move(device), timeout_seconds);
}

}  // namespace strata::cuda
