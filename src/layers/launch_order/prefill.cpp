#include "layers/launch_order/prefill.h"

namespace strata {

bool prefill_reads_pages(const LayerOptions& options, const PrefillWork& work, const Device& device) {
  if (options.prefill_mode != PrefillMode::automatic) return options.prefill_mode == PrefillMode::paged;
  if (options.batch_invariant) return work.latent;
  return ops::paged_prefill_is_faster(work, device);
}

}  // namespace strata
