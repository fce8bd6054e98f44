#include "strata/device.h"

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "core/check.h"

namespace strata {

std::string to_string(DeviceId id) {
  switch (id.kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return fmt::format("cuda:{}", id.index);
    case DeviceKind::opencl: return fmt::format("opencl:{}", id.index);
  }
  return "unknown";
}

DeviceId parse_device_id(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  DeviceId id;
  bool ok = true;
  if (colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id.index);
    ok = error == std::errc() && end == digits.data() + digits.size() && id.index >= 0 && !digits.empty();
  }
  if (kind == "cpu") {
    ok = ok && colon == std::string_view::npos;
  } else if (kind == "cuda") {
    id.kind = DeviceKind::cuda;
  } else if (kind == "opencl") {
    id.kind = DeviceKind::opencl;
  } else {
    ok = false;
  }
  require(ok, "a device is cpu, cuda:N or opencl:N, got '{}'", text);
  return id;
}

void* Device::allocate_host(int64_t bytes) {
  constexpr size_t kAlignment = 256;
  const size_t rounded = (byte_count(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  const bool fits = rounded <= static_cast<size_t>(std::numeric_limits<int64_t>::max());
  void* data = fits ? std::aligned_alloc(kAlignment, rounded) : nullptr;
  if (data == nullptr && bytes > 0)
    fail(ErrorCode::out_of_memory, "{}: allocation of {} bytes of host memory failed", to_string(id_), bytes);
  return data;
}

void Device::deallocate_host(void* data) noexcept { std::free(data); }

double Device::elapsed_seconds(Stream stream, const std::function<void()>& work) {
  synchronize(stream);
  const auto begin = std::chrono::steady_clock::now();
  work();
  synchronize(stream);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Graph Device::capture(Stream, const std::function<void()>&) {
  fail(ErrorCode::unsupported, "device {} captures no graphs", to_string(id_));
}
void Device::launch(Graph, Stream) { fail(ErrorCode::unsupported, "device {} has no graphs", to_string(id_)); }
void Device::destroy_graph(Graph) noexcept {}

bool Device::probe_read(const void*, int64_t, void*, Stream) { return false; }
bool Device::probe_launch(Stream) { return false; }
bool Device::probe_product(int64_t, const float*, const float*, float*, Stream) { return false; }

}  // namespace strata
