// Merges the splits of a token (V4 14.4): a group of warps for each head, whose warps share the parts between them, sixteen value lanes a
// thread. Floor: the parts are read once, 2 KB each; in truth the time is that of a few dependent loads, so all of a warp's parts are
// asked for together.
#include "backends/cuda/common/check.h"
#include "backends/cuda/common/warp.cuh"
#include "backends/cuda/sm90/sparse_decode/epilogue.cuh"
#include "backends/cuda/sm90/sparse_decode/launch.h"

namespace strata::cuda::sparse_decode {
namespace {

constexpr int kCombineWarps = 8, kCombineThreads = 32 * kCombineWarps, kQuads = kValueDim / 128;

__device__ __forceinline__ void add_weighted(float4& sum, float weight, float4 v) {
  sum.x += weight * v.x, sum.y += weight * v.y, sum.z += weight * v.z, sum.w += weight * v.w;
}

// kGroup warps a head.
template <int kGroup>
__global__ void __launch_bounds__(kCombineThreads) sparse_decode_combine_kernel(const __grid_constant__ DecodeArgs a) {
  __shared__ float4 shared_out[kGroup > 1 ? kCombineWarps : 1][kQuads][32];
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
  const float4* part = reinterpret_cast<const float4*>(a.part_out + first_part * kValueDim) + lane;
  const int64_t part_stride = static_cast<int64_t>(a.num_heads) * (kValueDim / 4);
  largest = lanes_max(largest);
  const bool empty = largest == -INFINITY;
  const float subtracted = empty ? 0.0f : largest;
  float sum = 0.0f;
  float4 out[kQuads] = {};
#pragma unroll 4
  for (int32_t i = in_group; i < splits; i += kGroup) {
    const float weight = ptx::ex2(lse[static_cast<int64_t>(i) * a.num_heads] - subtracted);
    sum += weight;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) add_weighted(out[j], weight, part[i * part_stride + 32 * j]);
  }
  if constexpr (kGroup > 1) {
    if (in_group > 0) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) shared_out[warp][j][lane] = out[j];
      if (lane == 0) shared_sum[warp] = sum;
    }
    __syncthreads();
    if (in_group > 0) return;
    for (int other = warp + 1; other < warp + kGroup; ++other) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) add_weighted(out[j], 1.0f, shared_out[other][j][lane]);
      sum += shared_sum[other];
    }
  }
  if (!exists) return;
  const float sink = a.sink == nullptr ? 0.0f : ptx::ex2(a.sink[head] * kLog2e - subtracted);
  const float inverse = empty ? 0.0f : 1.0f / (sum + sink);
  const int32_t query = token - batch * a.num_queries;
  uint16_t* target = a.out + batch * a.out_batch_stride + query * a.out_query_stride + head * a.out_head_stride + 4 * lane;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const uint32_t low = ptx::cvt_bf16x2(out[j].x * inverse, out[j].y * inverse),
                   high = ptx::cvt_bf16x2(out[j].z * inverse, out[j].w * inverse);
    if (reinterpret_cast<uintptr_t>(target) % 8 == 0) {
      *reinterpret_cast<uint2*>(target + 128 * j) = {low, high};
    } else {
      target[128 * j] = static_cast<uint16_t>(low), target[128 * j + 1] = static_cast<uint16_t>(low >> 16);
      target[128 * j + 2] = static_cast<uint16_t>(high), target[128 * j + 3] = static_cast<uint16_t>(high >> 16);
    }
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
