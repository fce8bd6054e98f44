#include "backends/cpu/cpu_device.h"

#include <unistd.h>

#include <algorithm>

#include "backends/cpu/cpu_features.h"
#include "backends/cpu/linear/fp32_product.h"
#include "core/check.h"
#include "core/host_device.h"

namespace strata::cpu {
namespace {

class CpuDevice final : public HostDevice {
 public:
  using HostDevice::HostDevice;

  std::string description() const override {
    const int threads = threads_of(*this);
    return fmt::format("{}, {} thread{}, {}", machine_model(), threads, threads == 1 ? "" : "s", to_string(isa_of(*this)));
  }

  DeviceProperties properties() const override {
    DeviceProperties p;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    p.last_level_cache_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
    p.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    return p;
  }

  bool probe_product(int64_t n, const float* a, const float* b, float* c, Stream) override { return fp32_product(*this, n, a, b, c); }
};

}  // namespace

CpuIsa isa_of(const Device& device) { return std::min(device.config().cpu_isa, machine_isa()); }
int threads_of(const Device& device) { return host_threads(device); }

std::shared_ptr<Device> make_device(DeviceId id, const Config& config) {
  require(id.index == 0, "device cpu has index 0 only, got {}", id.index);
  return std::make_shared<CpuDevice>(id, config);
}

}  // namespace strata::cpu
