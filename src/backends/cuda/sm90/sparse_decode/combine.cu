// Merges the splits of a token (V4 14.4): a group of warps for each head, whose warps share the parts between them, sixteen value lanes a
// thread. Floor: the parts are read once, 1 KB each; in truth the time is that of a few dependent loads, so all of a warp's parts are
// asked for together.
#include "backends/cuda/common/check.h"
#include "backends/cuda/common/warp.cuh"
#include "backends/cuda/sm90/sparse_decode/epilogue.cuh"
#include "backends/cuda/sm90/sparse_decode/launch.h"

namespace strata::cuda::sparse_decode {
namespace {

constexpr int kCombineWarps = 8, kCombineThreads = 32 * kCombineWarps, kUnits = kValueDim / 256;

// Eight value lanes.
struct Unit {
  float v[8];
};
__device__ __forceinline__ void add_weighted(Unit& sum, float weight, uint4 part) {
  const uint32_t pairs[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = __half22float2(as_half2(pairs[i]));
    sum.v[2 * i] += weight * v.x, sum.v[2 * i + 1] += weight * v.y;
  }
}

// kGroup warps a head.
template <int kGroup>
__global__ void __launch_bounds__(kCombineThreads) sparse_decode_combine_kernel(const __grid_constant__ DecodeArgs a) {
  __shared__ Unit shared_out[kGroup > 1 ? kCombineWarps : 1][kUnits][32];
  __shared__ float shared_sum[kCombineWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, in_group = warp % kGroup;
  const int32_t token = static_cast<int32_t>(blockIdx.x), batch = token / a.num_queries;
  const int32_t head = static_cast<int32_t>(blockIdx.y) * (kCombineWarps / kGroup) + warp / kGroup;
  const int32_t splits = TokenRows(a, batch).splits;
  ptx::wait_for_previous_kernel();
  if (splits == 1) return;  // the attention kernel has written the result
  const bool exists = head < a.num_heads;
  const int64_t first_part = part_index(a, token, 0, exists ? head : 0);
  const float* lse = a.part_lse + first_part;
  float largest = -INFINITY, max_logit = -INFINITY;
  for (int32_t i = lane; i < splits; i += 32) {
    largest = fmaxf(largest, lse[static_cast<int64_t>(i) * a.num_heads]);
    max_logit = fmaxf(max_logit, a.part_max[first_part + static_cast<int64_t>(i) * a.num_heads]);
  }
  const uint4* part = reinterpret_cast<const uint4*>(a.part_out + first_part * kValueDim) + lane;
  const int64_t part_stride = static_cast<int64_t>(a.num_heads) * (kValueDim / 8);
  largest = lanes_max(largest);
  const bool empty = largest == -INFINITY;
  const float subtracted = empty ? 0.0f : largest;
  float sum = 0.0f;
  Unit out[kUnits] = {};
#pragma unroll 4
  for (int32_t i = in_group; i < splits; i += kGroup) {
    const int64_t head_at = static_cast<int64_t>(i) * a.num_heads;
    const float weight = ptx::ex2(lse[head_at] - subtracted), of_part = weight * a.part_unshift[first_part + head_at];
    sum += weight;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) add_weighted(out[j], of_part, part[i * part_stride + 32 * j]);
  }
  if constexpr (kGroup > 1) {
    if (in_group > 0) {
#pragma unroll
      for (int j = 0; j < kUnits; ++j) shared_out[warp][j][lane] = out[j];
      if (lane == 0) shared_sum[warp] = sum;
    }
    __syncthreads();
    if (in_group > 0) return;
    for (int other = warp + 1; other < warp + kGroup; ++other) {
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
#pragma unroll
        for (int i = 0; i < 8; ++i) out[j].v[i] += shared_out[other][j][lane].v[i];
      }
      sum += shared_sum[other];
    }
  }
  if (!exists) return;
  const float sink = a.sink == nullptr ? 0.0f : ptx::ex2(a.sink[head] * kLog2e - subtracted);
  const float inverse = empty ? 0.0f : 1.0f / (sum + sink);
  const int32_t query = token - batch * a.num_queries;
  uint16_t* target = a.out + batch * a.out_batch_stride + query * a.out_query_stride + head * a.out_head_stride + 8 * lane;
  const bool aligned = reinterpret_cast<uintptr_t>(target) % 16 == 0;
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const auto pair = [&](int i) { return ptx::cvt_bf16x2(out[j].v[i] * inverse, out[j].v[i + 1] * inverse); };
    const uint4 v = {pair(0), pair(2), pair(4), pair(6)};
    aligned ? store_16<true>(target + 256 * j, v) : store_16<false>(target + 256 * j, v);
  }
  max_logit = lanes_max(max_logit);
  if (lane == 0) store_head(a, token, head, empty, subtracted + __log2f(sum), max_logit);
}

}  // namespace

void launch_combine(const DecodeArgs& args, int64_t num_tokens, cudaStream_t stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  constexpr int kManyParts = 8;
  const int heads_per_block = args.num_splits > kManyParts ? 1 : kCombineWarps;
  config.gridDim = dim3(static_cast<unsigned>(num_tokens), static_cast<unsigned>((args.num_heads + heads_per_block - 1) / heads_per_block));
  config.blockDim = dim3(kCombineThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  const auto kernel = heads_per_block == 1 ? sparse_decode_combine_kernel<kCombineWarps> : sparse_decode_combine_kernel<1>;
  check(cudaLaunchKernelEx(&config, kernel, args), "sparse_decode_combine_kernel");
}

}  // namespace strata::cuda::sparse_decode
