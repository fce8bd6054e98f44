#include "core/planning_device.h"

#include <sys/mman.h>

#include "core/check.h"

namespace strata {

// Where nothing can be written no page is ever allocated, and none counts against overcommit limits.
void* PlanningDevice::allocate(int64_t bytes) { return map(bytes, PROT_READ); }

void* PlanningDevice::allocate_host(int64_t bytes) { return map(bytes, PROT_READ | PROT_WRITE); }

void* PlanningDevice::map(int64_t bytes, int access) {
  require(bytes >= 0, "allocate: bytes: expected >= 0, is {}", bytes);
  if (bytes == 0) return nullptr;
  void* data = mmap(nullptr, static_cast<size_t>(bytes), access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) fail(ErrorCode::out_of_memory, "planning: no address space for {} bytes", bytes);
  const std::lock_guard lock(mutex_);
  sizes_.emplace(data, static_cast<size_t>(bytes));
  return data;
}

void PlanningDevice::deallocate(void* data) noexcept {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto known = sizes_.find(data);
  if (known == sizes_.end()) return;
  munmap(data, known->second);
  sizes_.erase(known);
}

}  // namespace strata
