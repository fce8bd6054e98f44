#include "backends/cpu/fp32_product.h"

#include "strata/device.h"

#ifdef STRATA_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/onednn_team.h"
#include "core/check.h"
#endif

namespace strata::cpu {

bool fp32_product([[maybe_unused]] const Device& device, [[maybe_unused]] int64_t n, [[maybe_unused]] const float* a,
                  [[maybe_unused]] const float* b, [[maybe_unused]] float* c) {
#ifdef STRATA_WITH_ONEDNN
  if (device.config().cpu_isa != CpuIsa::best) return false;
  if (n == 0) return true;
  const OneDnnTeam team(threads_of(device));
  const dnnl_status_t status = dnnl_sgemm('N', 'T', n, n, n, 1.0f, a, n, b, n, 0.0f, c, n);
  if (status != dnnl_success) fail(ErrorCode::device_failure, "oneDNN: dnnl_sgemm must return 0, returned {}", static_cast<int>(status));
  return true;
#else
  return false;
#endif
}

}  // namespace strata::cpu
