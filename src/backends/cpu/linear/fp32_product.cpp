#include "backends/cpu/linear/fp32_product.h"

#include <algorithm>
#include <atomic>

#include "backends/cpu/cpu_device.h"
#include "core/ceil_div.h"
#include "core/check.h"

#ifdef STRATA_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#include "backends/cpu/linear/onednn_alone.h"
#endif

namespace strata::cpu {

#ifdef STRATA_WITH_ONEDNN

bool fp32_product(const Device& device, int64_t n, const float* a, const float* b, float* c) {
  if (device.config().cpu_isa != CpuIsa::best) return false;
  std::atomic<dnnl_status_t> status{dnnl_success};
  const int64_t rows = std::max<int64_t>(n / (4 * threads_of(device)), 64);
  parallel_for(device, ceil_div(n, rows), 1, [&](int64_t task) {
    const OneDnnAlone alone;
    const int64_t first = task * rows;
    const auto s = dnnl_sgemm('N', 'T', std::min(rows, n - first), n, n, 1.0f, a + first * n, n, b, n, 0.0f, c + first * n, n);
    if (s != dnnl_success) status = s;
  });
  if (status != dnnl_success)
    fail(ErrorCode::device_failure, "oneDNN: dnnl_sgemm must return 0, returned {}", static_cast<int>(status.load()));
  return true;
}

#else

bool fp32_product(const Device&, int64_t, const float*, const float*, float*) { return false; }

#endif

}  // namespace strata::cpu
