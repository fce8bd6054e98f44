#include "backends/cuda/runtime/memory_pool.h"

#include <algorithm>
#include <bit>

#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "core/check.h"

namespace strata::cuda {
namespace {

constexpr size_t kSmallest = 512;
constexpr size_t kLargeStep = size_t{2} << 20;

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

size_t MemoryPool::size_class(size_t bytes) {
  if (bytes > kLargeStep) return round_up(bytes, kLargeStep);
  const size_t at_least = std::max(bytes, kSmallest);
  return round_up(at_least, std::bit_ceil(at_least) / 8);
}

MemoryPool::~MemoryPool() {
  // Not by DeviceScope: at the end of a process these calls may fail, which nobody can be told here.
  int previous = device_index_;
  cudaGetDevice(&previous);
  cudaSetDevice(device_index_);
  for (const auto& [data, block] : blocks_) cudaFree(data);
  if (previous != device_index_) cudaSetDevice(previous);
}

void* MemoryPool::allocate(size_t bytes, bool may_synchronize) {
  if (bytes > SIZE_MAX - kLargeStep) fail(ErrorCode::out_of_memory, "CUDA: an allocation of {} bytes cannot be", bytes);
  const size_t size = size_class(bytes);
  const std::lock_guard lock(mutex_);
  const DeviceScope scope(device_index_);
  if (void* data = reuse(size, may_synchronize)) return data;
  void* data = nullptr;
  cudaError_t error = cudaMalloc(&data, size);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    release_free_blocks();
    error = cudaMalloc(&data, size);
  }
  if (error != cudaSuccess) {
    size_t available = 0, total = 0;
    if (error == cudaErrorMemoryAllocation) cudaMemGetInfo(&available, &total);
    throw_error(error, fmt::format("cudaMalloc of {} bytes ({} of {} bytes of the device are free)", size, available, total));
  }
  try {
    free_.try_emplace(size, nullptr);
    blocks_.emplace(data, Block{.data = data, .bytes = size});
  } catch (...) {
    cudaFree(data);
    throw;
  }
  return data;
}

void* MemoryPool::reuse(size_t bytes, bool may_synchronize) {
  const auto found = free_.find(bytes);
  if (found == free_.end() || found->second == nullptr) return nullptr;
  Block& block = *found->second;
  if (block.freed_at > num_freed_at_sync_) {
    if (!may_synchronize) return nullptr;
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize before memory is used again");
    num_freed_at_sync_ = num_freed_;
  }
  found->second = block.next_free;
  block.in_use = true;
  return block.data;
}

void MemoryPool::deallocate(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(data);
  if (found == blocks_.end() || !found->second.in_use) return;
  Block& block = found->second;
  Block*& first = free_.find(block.bytes)->second;
  block.in_use = false;
  block.freed_at = ++num_freed_;
  block.next_free = first;
  first = &block;
}

void MemoryPool::release_free_blocks() {
  for (auto& [bytes, first] : free_) first = nullptr;
  std::erase_if(blocks_, [](const auto& entry) {
    if (entry.second.in_use) return false;
    cudaFree(entry.first);  // waits for the device
    return true;
  });
}

}  // namespace strata::cuda
