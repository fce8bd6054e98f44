#include "core/host_device.h"

#include <cstring>

#include "core/check.h"
#include "core/thread_team.h"

namespace strata {
namespace {

// Null with 0 bytes is an empty copy, which memmove does not allow.
void move_bytes(void* dst, const void* src, int64_t bytes) {
  if (const size_t count = byte_count(bytes); count > 0) std::memmove(dst, src, count);
}

}  // namespace

void HostDevice::copy_from_host(void* dst, const void* src, int64_t bytes, Stream) { move_bytes(dst, src, bytes); }
void HostDevice::copy_to_host(void* dst, const void* src, int64_t bytes, Stream) { move_bytes(dst, src, bytes); }
void HostDevice::copy(void* dst, const void* src, int64_t bytes, Stream) { move_bytes(dst, src, bytes); }
void HostDevice::fill(void* dst, uint8_t value, int64_t bytes, Stream) {
  if (const size_t count = byte_count(bytes); count > 0) std::memset(dst, value, count);
}

int host_threads(const Device& device) {
  const int configured = device.config().cpu_threads;
  return configured > 0 ? configured : available_cores();
}

}  // namespace strata
