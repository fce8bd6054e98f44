// Addresses of a query token's values, and access to queries and outputs of any alignment: shared by the attention kernels.
#pragma once

#include "backends/cuda/device/logarithms.h"
#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/portable_attention/row_attention.h"

namespace strata::cuda {

__device__ __forceinline__ int64_t token_offset(const RowAttention& a, const TokenStrides& s, int32_t token, int32_t head) {
  const int32_t batch = a.queries_per_batch.divide(token), query = token - batch * a.queries_per_batch.value();
  return batch * s.batch + query * s.query + head * s.head;
}

// Operands of mma_m16n8k16 from rows in global memory. rows[0] and rows[1] are d's rows l / 4 and l / 4 + 8, from dimension 2 (l % 4) on;
// null: zeros. Step i begins kStride * i dimensions further. From `dim` on, a multiple of 8, dimensions are zero.
template <int kSteps, int kStride>
__device__ __forceinline__ void load_fragments(const Bf16* const (&rows)[2], int dim, uint32_t (&fragments)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Bf16* row = rows[i % 2] + i / 2 * 8;
    if (rows[i % 2] != nullptr && aligned(row, 4)) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        fragments[step][i] = step * kStride + i / 2 * 8 < dim ? *reinterpret_cast<const uint32_t*>(row + step * kStride) : 0;
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        fragments[step][i] = rows[i % 2] == nullptr || step * kStride + i / 2 * 8 >= dim
                                 ? 0
                                 : row[step * kStride].bits | uint32_t{row[step * kStride + 1].bits} << 16;
      }
    }
  }
}

// Values `column` and the next one of a row of value_dim.
__device__ __forceinline__ void store_out_pair(Bf16* out, int column, int value_dim, float x, float y) {
  const uint32_t pair = pack_bf16(x, y);
  if (column + 1 < value_dim && aligned(out + column, 4)) {
    *reinterpret_cast<uint32_t*>(out + column) = pair;
    return;
  }
  if (column < value_dim) out[column] = Bf16{static_cast<uint16_t>(pair)};
  if (column + 1 < value_dim) out[column + 1] = Bf16{static_cast<uint16_t>(pair >> 16)};
}

}  // namespace strata::cuda
