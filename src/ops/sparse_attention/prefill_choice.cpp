#include "ops/sparse_attention/prefill_choice.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::ops {

bool paged_prefill_is_faster(const PrefillWork& work, const Device& device) {
  return device.id().kind == DeviceKind::cuda ? cuda::paged_prefill_is_faster(work, device) : work.latent;
}

}  // namespace strata::ops
