// A warp per (query token, head), row by row, on the ordinary fp32 units. Its only aim is to be right for every shape: nothing is shared
// between heads, so a row is read once per head, and it is slower than the tensor-core kernels by the number of heads.
#include <cmath>

#include "backends/cuda/portable_attention/generic_attention.h"
#include "backends/cuda/portable_attention/token_address.cuh"
#include "backends/cuda/portable_attention/warp_attention.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/grid.h"
#include "formats/kv_rows.h"

namespace strata::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;

// Value d of a cache row.
__device__ float row_value(const RowScope& s, const uint8_t* data, const uint8_t* scales, int d) {
  const auto bf16_at = [](const uint8_t* bytes) { return to_float(Bf16{load_u16(bytes)}); };
  switch (s.format) {
    case KvFormat::fp8_ds_mla_v4:
      if (d >= kV4NopeDim) return bf16_at(data + kV4NopeDim + 2 * (d - kV4NopeDim));
      return to_float(E4m3{data[d]}) * to_float(E8m0{scales[d / kKvBlock]});
    case KvFormat::fp8_ds_mla:
      if (d >= kMlaLatentDim) return bf16_at(data + kMlaRopeOffset + 2 * (d - kMlaLatentDim));
      return round_to_bf16(to_float(E4m3{data[d]}) * load_f32(data + kMlaScaleOffset + 4 * (d / kMlaTile)));
    case KvFormat::fp8_tensor: return to_float(E4m3{data[d]}) * s.scale;
    default: return bf16_at(data + 2 * d);
  }
}

// The request of a token: the last one that begins at it or before, and has queries.
__device__ int32_t request_of(const RowAttention& a, int32_t token) {
  int32_t low = 0, high = static_cast<int32_t>(a.num_units) - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (a.query_start_loc[middle] - a.query_start_loc[0] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__global__ void __launch_bounds__(32 * kWarpsPerBlock) generic_row_kernel(const __grid_constant__ RowAttention a) {
  const int64_t index = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / 32;
  if (index >= a.num_tokens * a.num_heads) return;
  const int32_t token = static_cast<int32_t>(index / a.num_heads), head = static_cast<int32_t>(index % a.num_heads);
  const Bf16* q = a.q + token_offset(a, a.q_stride, token, head);
  WarpSoftmax softmax;
  const auto add = [&](const RowScope& s, int32_t page, int32_t row) {
    const uint8_t* base = s.data + page * s.page_stride;
    const uint8_t *data = base + row * s.row_bytes, *scales = base + s.scale_offset + int64_t{row} * 8;
    const auto value = [&](int d) { return row_value(s, data, scales, d); };
    softmax.add(
        a.head_dim, a.value_dim, a.softmax_scale, [&](int d) { return to_float(q[d]); }, value, value);
  };
  if (a.query_start_loc != nullptr) {
    const RowScope& s = a.scopes[0];
    const int32_t request = request_of(a, token);
    const int32_t later = a.query_start_loc[request + 1] - a.query_start_loc[0] - token - 1;  // queries of the request
    const int32_t visible = a.seq_lens[request] - later * a.causal;
    for (int32_t j = 0; j < visible; ++j) {
      const int32_t block = s.page_size.divide(j);
      add(s, s.table[request * s.table_batch + block], j - block * s.page_size.value());
    }
  } else {
    const int32_t batch = a.queries_per_batch.divide(token), query = token - batch * a.queries_per_batch.value();
    for (int scope = 0; scope < a.num_scopes; ++scope) {
      const RowScope& s = a.scopes[scope];
      const int32_t length = s.length == nullptr ? s.width : min(s.length[batch], s.width);
      const int32_t* table = s.table + batch * s.table_batch + query * s.table_query;
      for (int32_t j = 0; j < length; ++j) {
        const int32_t slot = table[j];
        if (static_cast<uint32_t>(slot) >= static_cast<uint32_t>(s.num_rows)) continue;
        const int32_t page = s.page_size.divide(slot);
        add(s, page, slot - page * s.page_size.value());
      }
    }
  }
  Bf16* out = a.out + token_offset(a, a.out_stride, token, head);
  softmax.finish(a.value_dim, a.sink == nullptr ? -INFINITY : a.sink[head], [&](int d, float v) { out[d] = to_bf16(v); });
  if (threadIdx.x % 32 != 0) return;
  if (a.lse != nullptr) a.lse[token_offset(a, a.lse_stride, token, head)] = softmax.lse(INFINITY);
  if (a.max_logits != nullptr) a.max_logits[token_offset(a, a.max_stride, token, head)] = softmax.max();
}

__global__ void __launch_bounds__(32 * kWarpsPerBlock) generic_prefill_kernel(const __grid_constant__ DensePrefill a) {
  const int64_t index = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / 32;
  if (index >= int64_t{a.num_queries} * a.num_heads) return;
  const int64_t token = index / a.num_heads, head = index % a.num_heads;
  int32_t request = 0;
  RequestRange r = request_range(a, request);
  while (token >= r.first_query + r.num_queries) r = request_range(a, ++request);
  prefill_query(a, r, token, head);
}

}  // namespace

void generic_row_attention_run(const RowAttention& a, const ExecutionContext& context) {
  if (a.num_tokens == 0) return;
  generic_row_kernel<<<blocks_for(a.num_tokens * a.num_heads, kWarpsPerBlock), 32 * kWarpsPerBlock, 0, native(context.stream)>>>(a);
  check_launch("generic_row_kernel");
}

void generic_dense_prefill_run(const DensePrefill& a, const ExecutionContext& context) {
  if (a.num_queries == 0) return;
  generic_prefill_kernel<<<blocks_for(int64_t{a.num_queries} * a.num_heads, kWarpsPerBlock), 32 * kWarpsPerBlock, 0,
                           native(context.stream)>>>(a);
  check_launch("generic_prefill_kernel");
}

}  // namespace strata::cuda
