// Combines the splits of row attention. A CTA per (token, head): the splits' values are read once, which is the
// floor.
#include <algorithm>
#include <cmath>

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/portable_attention/row_attention_plan.h"
#include "backends/cuda/portable_attention/token_address.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/grid.h"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

constexpr int kGroup = kRowValueDim / 4, kMaxGroups = 4, kSplitsPerGroup = 8;

__global__ void __launch_bounds__(kGroup* kMaxGroups)
    combine_kernel(const __grid_constant__ RowAttention a, const __grid_constant__ RowAttentionPlan plan) {
  __shared__ float4 sums[kMaxGroups - 1][kGroup];
  const int64_t row = blockIdx.x, num_rows = gridDim.x;
  const int32_t token = static_cast<int32_t>(row / a.num_heads), head = static_cast<int32_t>(row % a.num_heads);
  const int lane = threadIdx.x % 32;
  const float* lse = plan.partial_lse + row;
  float max = -INFINITY, sum = 0.0f;
  for (int s = lane; s < plan.num_splits; s += 32) max = fmaxf(max, lse[s * num_rows]);
  max = lanes_max(max);
  const float base = max == -INFINITY ? 0.0f : max;
  for (int s = lane; s < plan.num_splits; s += 32) sum += ptx::ex2(lse[s * num_rows] - base);
  sum = lanes_sum(sum);
  const bool empty = sum == 0.0f;
  const float sink = a.sink == nullptr ? 0.0f : exp2f(a.sink[head] * kLog2e - base);
  const float factor = empty ? 0.0f : 1.0f / (sum + sink);

  const int column = threadIdx.x % kGroup, group = threadIdx.x / kGroup, groups = blockDim.x / kGroup;
  float4 total = make_float4(0, 0, 0, 0);
  const auto add = [&](float weight, const float4& v) {
    total = make_float4(fmaf(weight, v.x, total.x), fmaf(weight, v.y, total.y), fmaf(weight, v.z, total.z), fmaf(weight, v.w, total.w));
  };
#pragma unroll 8
  for (int s = group; s < plan.num_splits; s += groups) {
    const float split_lse = lse[s * num_rows];
    // The values of an empty split were not written.
    const float4 v = split_lse == -INFINITY
                         ? make_float4(0, 0, 0, 0)
                         : *reinterpret_cast<const float4*>(plan.partial_out + (s * num_rows + row) * kRowValueDim + 4 * column);
    add(ptx::ex2(split_lse - base), v);
  }
  if (group > 0) sums[group - 1][column] = total;
  __syncthreads();
  if (group > 0) return;
  for (int g = 1; g < groups; ++g) add(1.0f, sums[g - 1][column]);
  Bf16* out = a.out + token_offset(a, a.out_stride, token, head);
  store_out_pair(out, 4 * column, a.value_dim, total.x * factor, total.y * factor);
  store_out_pair(out, 4 * column + 2, a.value_dim, total.z * factor, total.w * factor);
  if (threadIdx.x != 0) return;
  if (a.lse != nullptr) a.lse[token_offset(a, a.lse_stride, token, head)] = empty ? INFINITY : (base + log2f(sum)) * kLn2;
  if (a.max_logits != nullptr) {
    float largest = -INFINITY;
    for (int s = 0; s < plan.num_splits; ++s) largest = fmaxf(largest, plan.partial_max[s * num_rows + row]);
    a.max_logits[token_offset(a, a.max_stride, token, head)] = largest * kLn2;
  }
}

}  // namespace

void combine_row_attention(const RowAttention& a, const RowAttentionPlan& plan, cudaStream_t stream) {
  // batch_invariant: the order of a sum must not depend on how many splits other tokens have.
  const int64_t groups = a.batch_invariant ? 1 : std::min<int64_t>(ceil_div(plan.num_splits, kSplitsPerGroup), kMaxGroups);
  combine_kernel<<<blocks_for(a.num_tokens * a.num_heads, 1), static_cast<unsigned>(kGroup * groups), 0, stream>>>(a, plan);
  check_launch("combine_kernel");
}

}  // namespace strata::cuda
