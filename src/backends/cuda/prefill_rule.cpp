// PrefillMode::automatic on CUDA: the times of both ways as functions of shapes, fitted to measurements
// (docs/kernels/20261121-sparse-prefill.md).
#include "backends/cuda/common/cuda_device.h"
#include "backends/cuda/common/grid.h"
#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {
bool paged_prefill_is_faster(const PrefillWork& work, const Device& device) {
  if (!is_cuda(device)) return false;
  const Capabilities c = capabilities(device);
  // Elsewhere both ways take the portable kernel, whose times have not been compared.
  if (!c.sm90() || work.format != KvFormat::fp8_ds_mla_v4) return false;
  // Both kernels work on tiles of 64 heads of a token and 64 of its rows, one tile at a time on a multiprocessor. Microseconds.
  const auto rounds = static_cast<double>(ceil_div(work.num_tokens * ceil_div(work.num_heads, 64), c.num_sms));
  const auto tiles = static_cast<double>(ceil_div(work.rows_per_token, 64));
  const double paged = 3.0 + rounds * 3.2 * tiles;
  const double gathered =
      4.0 + rounds * (1.8 + 1.63 * tiles) + 6.0 * static_cast<double>(work.num_chunks) + 0.5e-3 * static_cast<double>(work.gathered_rows);
  return paged < gathered;
}

}  // namespace strata::cuda
