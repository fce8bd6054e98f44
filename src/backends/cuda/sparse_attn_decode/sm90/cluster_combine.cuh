// Combines the splits of a token's heads in a cluster of the CTAs that computed them. Each CTA combines its share of the heads of all
// splits from distributed shared memory, so splits are neither written to memory nor read by another kernel.
#pragma once

#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/combined_head.cuh"

namespace strata::cuda::sparse_decode {

// What the other CTAs of the cluster need of a head of a split, apart from the sums.
struct SplitEnd {
  float lse, maximum;  // base 2
  float unshift, unused;
};
// In the second half of the weights' buffer, once no product needs weights.
template <class Shared>
__device__ __forceinline__ SplitEnd* split_ends(Shared& shared) {
  static_assert(sizeof(shared.p) / 2 >= kHeadTile * sizeof(SplitEnd));
  return reinterpret_cast<SplitEnd*>(shared.p + sizeof(shared.p) / 2);
}

// Called by the consumers of the kSplits CTAs that have rows, the first of the cluster, after each wrote its half of the sums
// (transpose_sums): fp16 multiples of the split's unshift. A CTA combines every kSplits-th head, a warp every eighth of those.
template <int kSplits, class Shared>
__device__ __forceinline__ void combine_in_cluster(const DecodeArgs& a, Shared& shared, int32_t token, int32_t split, int32_t first_head) {
  constexpr int kWarps = kConsumerThreads / 32, kHeads = (kHeadTile / kWarps + kSplits - 1) / kSplits, kLanesOfHead = 4;
  static_assert(kSplits <= kLanesOfHead && kHeads * kLanesOfHead <= 32);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto row_of = [&](int i) { return split + kSplits * (warp + kWarps * i); };
  ptx::cluster_arrive();
  // One lane per split of each of the warp's heads.
  const int own_split = lane % kLanesOfHead, own = lane / kLanesOfHead, own_row = row_of(own), own_head = first_head + own_row;
  const bool exists = own < kHeads && own_row < kHeadTile && own_head < a.num_heads;
  const float sink = __uint_as_float(ptx::ld_if(a.sink != nullptr && exists, a.sink + own_head, 0xFF800000u));
  ptx::cluster_wait();
  uint4 values[kHeads][kSplits][kHalves];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int row = min(row_of(i), kHeadTile - 1);
#pragma unroll
    for (int p = 0; p < kSplits; ++p) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        values[i][p][half] =
            ptx::load_cluster(ptx::map_shared(transposed(shared, half) + lane / 8 * kChunkBytes + unit_offset(row, lane % 8), p));
      }
    }
  }
  SplitEnd end = {-INFINITY, -INFINITY, 0.0f, 0.0f};
  if (exists && own_split < kSplits) {
    const float4 v = ptx::load_cluster_f32x4(ptx::map_shared(ptx::shared_address(split_ends(shared) + own_row), own_split));
    end = {v.x, v.y, v.z, 0.0f};
  }
  ptx::cluster_arrive();
  const auto over_splits = [](float v, const auto& join) {
    v = join(v, __shfl_xor_sync(~0u, v, 1));
    return join(v, __shfl_xor_sync(~0u, v, 2));
  };
  const auto largest = [](float x, float y) { return fmaxf(x, y); };
  const float largest_lse = over_splits(end.lse, largest), maximum = over_splits(end.maximum, largest);
  const CombinedHead combined(largest_lse);
  const float weight = combined.weight(end.lse), sum = over_splits(weight, [](float x, float y) { return x + y; });
  const float factor = weight * end.unshift * combined.inverse(sum, sink * kLog2e);
  if (exists && own_split == 0) combined.store(a, token, own_head, sum, maximum);
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  const int rotated_unit = a.positions != nullptr ? lane - (32 - kRotaryDims / 8) : -1;
  uint16_t* const out = a.out + batch * a.out_batch_stride + query * a.out_query_stride + first_head * a.out_head_stride + 8 * lane;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    float sums[kHalves][8] = {};
#pragma unroll
    for (int p = 0; p < kSplits; ++p) {
      const float split_factor = __shfl_sync(~0u, factor, kLanesOfHead * i + p);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) add_weighted(sums[half], split_factor, values[i][p][half]);
    }
    const int row = row_of(i);
    if (row >= kHeadTile || first_head + row >= a.num_heads) break;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float* const s = sums[half];
      uint4 v = {ptx::cvt_bf16x2(s[0], s[1]), ptx::cvt_bf16x2(s[2], s[3]), ptx::cvt_bf16x2(s[4], s[5]), ptx::cvt_bf16x2(s[6], s[7])};
      if (half == 1 && rotated_unit >= 0) v = rotate_back(v, shared.rotation + 4 * rotated_unit);
      ptx::st_global(out + row * a.out_head_stride + half * (kValueDim / 2), v);
    }
  }
  ptx::cluster_wait();  // no CTA exits while others read
}

}  // namespace strata::cuda::sparse_decode
