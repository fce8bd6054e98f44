#include "core/memory_pool.h"

#include <algorithm>
#include <bit>

#include "core/check.h"

namespace strata {
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
  for (const auto& [data, block] : blocks_) source_.release(data);
}

void* MemoryPool::allocate(size_t bytes, bool may_synchronize) {
  if (bytes > SIZE_MAX - kLargeStep) fail(ErrorCode::out_of_memory, "an allocation of {} bytes cannot be", bytes);
  const size_t size = size_class(bytes);
  const std::lock_guard lock(mutex_);
  if (void* data = reuse(size, may_synchronize)) return data;
  void* data = source_.allocate(size, /*must=*/false);
  if (data == nullptr) {
    release_free_blocks();
    data = source_.allocate(size, /*must=*/true);
  }
  try {
    free_.try_emplace(size, nullptr);
    blocks_.emplace(data, Block{.data = data, .bytes = size});
  } catch (...) {
    source_.release(data);
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
    source_.synchronize();
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
  std::erase_if(blocks_, [this](const auto& entry) {
    if (entry.second.in_use) return false;
    source_.release(entry.first);
    return true;
  });
}

}  // namespace strata
