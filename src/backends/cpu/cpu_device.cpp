#include "backends/cpu/cpu_device.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "backends/cpu/cpu_features.h"
#include "core/check.h"

namespace strata::cpu {
namespace {

constexpr int kMaxThreads = 4096;

class CpuDevice final : public Device {
 public:
  CpuDevice(DeviceId id, const Config& config)
      : Device(id, config),
        isa_(std::min(config.cpu_isa, machine_isa())),
        threads_(config.cpu_threads > 0 ? config.cpu_threads : omp_get_num_procs()) {}

  std::string description() const override { return fmt::format("cpu: {} threads, {}", threads_, to_string(isa_)); }

  DeviceProperties properties() const override {
    DeviceProperties p;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    p.last_level_cache_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
    p.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    return p;
  }

  void* allocate(size_t bytes) override { return allocate_host(bytes); }
  void deallocate(void* data) noexcept override { deallocate_host(data); }

  void copy_from_host(void* dst, const void* src, size_t bytes, Stream) override { copy_bytes(dst, src, bytes); }
  void copy_to_host(void* dst, const void* src, size_t bytes, Stream) override { copy_bytes(dst, src, bytes); }
  void copy(void* dst, const void* src, size_t bytes, Stream) override { copy_bytes(dst, src, bytes); }
  void fill(void* dst, uint8_t value, size_t bytes, Stream) override {
    if (bytes > 0) std::memset(dst, value, bytes);
  }

  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  Event create_event() override { return {}; }
  void destroy_event(Event) noexcept override {}
  void record(Event, Stream) override {}
  void wait(Event, Stream) override {}
  void synchronize(Stream) override {}

  CpuIsa isa() const { return isa_; }
  int threads() const { return threads_; }

 private:
  static void copy_bytes(void* dst, const void* src, size_t bytes) {
    if (bytes > 0) std::memmove(dst, src, bytes);
  }

  CpuIsa isa_;
  int threads_;
};

}  // namespace

CpuIsa isa_of(const Device& device) { return static_cast<const CpuDevice&>(device).isa(); }
int threads_of(const Device& device) { return static_cast<const CpuDevice&>(device).threads(); }

std::shared_ptr<Device> make_device(DeviceId id, const Config& config) {
  require(id.index == 0, "device cpu has index 0 only, got {}", id.index);
  // OpenMP ends the process when it cannot start a thread.
  require(config.cpu_threads >= 0 && config.cpu_threads <= kMaxThreads, "cpu_threads must be in [0, {}], is {}", int{kMaxThreads},
          config.cpu_threads);
  return std::make_shared<CpuDevice>(id, config);
}

}  // namespace strata::cpu
