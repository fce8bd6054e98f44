// Every kind of device that this build has.
#include "backends/cpu/cpu_device.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "core/check.h"
#include "strata/device.h"

namespace strata {

std::shared_ptr<Device> open_device(DeviceId id, const Config& config) {
  constexpr int kMaxThreads = 4096;
  require(config.cpu_threads >= 0 && config.cpu_threads <= kMaxThreads, "cpu_threads must be in [0, {}], is {}", int{kMaxThreads},
          config.cpu_threads);
  switch (id.kind) {
    case DeviceKind::cpu: return cpu::make_device(id, config);
    case DeviceKind::cuda: return cuda::make_device(id, config);
    case DeviceKind::opencl: return opencl::make_device(id, config);
  }
  fail(ErrorCode::invalid_argument, "unknown device kind {}", static_cast<int>(id.kind));
}

}  // namespace strata
