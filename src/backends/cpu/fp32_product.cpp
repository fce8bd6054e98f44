#include "backends/cpu/fp32_product.h"

#include "backends/cpu/cpu_device.h"
#include "core/check.h"

#ifdef STRATA_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#include "backends/cpu/onednn_team.h"
#endif

namespace strata::cpu {

#ifdef STRATA_WITH_ONEDNN

bool has_fp32_product(const Device& device) { return device.config().cpu_isa == CpuIsa::best; }

void fp32_product(const Device& device, int64_t n, const float* a, const float* b, float* c) {
  const OneDnnTeam team(threads_of(device));
  const dnnl_status_t status = dnnl_sgemm('N', 'T', n, n, n, 1.0f, a, n, b, n, 0.0f, c, n);
  if (status != dnnl_success) fail(ErrorCode::device_failure, "oneDNN: dnnl_sgemm must return 0, returned {}", static_cast<int>(status));
}

#else

bool has_fp32_product(const Device&) { return false; }
void fp32_product(const Device&, int64_t, const float*, const float*, float*) {
  fail(ErrorCode::unsupported, "fp32_product: the library was built without oneDNN");
}

#endif

}  // namespace strata::cpu
