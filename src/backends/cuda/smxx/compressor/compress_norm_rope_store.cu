// Compressed entries from the state rows of their windows: V4 9.1 and 9.2 "compress". Floor: the state rows, 8 * d bytes each: 32 KB an
// entry for ratio 4 and d = 512, 512 KB for ratio 128; the entry itself is some 600 bytes. A prompt of 4096 tokens on an H200: 13.7 us of
// 7.8 for ratio 4, 12.0 of 3.9 for ratio 128, the launch and a chain of three dependent reads (token, page, row) included.
//
// Ratio 4: a block per entry, four channels per thread.
// Ratio 128: half a megabyte is too much for one SM, so a cluster works on an entry, 64 channels per block, the rows split over its warps;
// the blocks put their pooled channels into the shared memory of the first, which finishes the entry. Before sm_90 one block does the
// slices one after the other.
#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/smxx/compressor/entry.cuh"

namespace strata::cuda {
namespace {

constexpr float kNoScore = -INFINITY;

// A cluster of one block, which is all that there is before sm_90, needs none of these.
__device__ __forceinline__ void cluster_arrive(int cluster_size) {
#if __CUDA_ARCH__ >= 900
  if (cluster_size > 1) ptx::cluster_arrive();
#endif
}
__device__ __forceinline__ void cluster_wait(int cluster_size) {
#if __CUDA_ARCH__ >= 900
  if (cluster_size > 1) ptx::cluster_wait();
#endif
}
// *own = v in the cluster's first block.
__device__ __forceinline__ void store_first(int cluster_size, float* own, float v) {
#if __CUDA_ARCH__ >= 900
  if (cluster_size > 1) return ptx::store_cluster_f32(ptx::map_shared(static_cast<uint32_t>(__cvta_generic_to_shared(own)), 0), v);
#endif
  *own = v;
}

// kDim / 4 threads.
template <int kDim, bool kAligned>
__global__ void __launch_bounds__(kDim / 4, 640 * 4 / kDim) compress_4_kernel(const __grid_constant__ CompressArgs a) {
  constexpr int32_t kRatio = 4, kRows = 2 * kRatio;
  __shared__ typename Finisher<kDim>::Shared shared;
  touch_first(a, blockIdx.x, gridDim.x);
  start_early();
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  Finisher<kDim> finisher(a);
  for_each_entry<kRatio>(a, blockIdx.x, gridDim.x, [&](int64_t position, int32_t request, int64_t out_slot) {
    const uint8_t* const row = lane < kRows ? state_row(a, request, position - (kRows - 1) + lane) : nullptr;
    finisher.load_angles(a, position, kRatio);
    Pooled pooled[4] = {{kNoScore, 0, 0}, {kNoScore, 0, 0}, {kNoScore, 0, 0}, {kNoScore, 0, 0}};
    const int channel = 4 * static_cast<int>(threadIdx.x);
    static_assert(kRatio == kRowsInFlight);
    pool_rows<kAligned>(a, row, 0, channel, pooled);              // the previous window: the first half of the columns
    pool_rows<kAligned>(a, row, kRatio, kDim + channel, pooled);  // the current one: the second
    float u[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) u[j] = __fdividef(pooled[j].weighted, pooled[j].sum);
    finisher.store(a, u, out_slot, shared);
  });
}

constexpr int kSlice = 64;  // channels that a block works on at a time, by either half of each warp
constexpr int kHalfWarp = kWarpSize / 2;
constexpr int kWarpsPerSm = 24;

template <int kDim, bool kAligned, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize, kWarpsPerSm / kWarps)
    compress_128_kernel(const __grid_constant__ CompressArgs a, int cluster_size) {
  constexpr int32_t kRatio = 128;
  constexpr int kWarpRows = kRatio / kWarps, kRows = kWarpRows / 2;  // of a warp, of a half
  static_assert(kSlice == kHalfWarp * 4 && kWarpRows <= kWarpSize && kDim / 4 <= kWarps * kWarpSize);
  __shared__ float peaks[kWarps][kSlice], sums[kWarps][kSlice], weighted[kWarps][kSlice];
  __shared__ typename Finisher<kDim>::Shared shared;
  touch_first(a, blockIdx.x / cluster_size, gridDim.x / cluster_size);
  start_early();
  const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int rank = static_cast<int>(blockIdx.x) % cluster_size, channel = lane % kHalfWarp * 4;
  Finisher<kDim> finisher(a);
  for_each_entry<kRatio>(a, blockIdx.x / cluster_size, gridDim.x / cluster_size, [&](int64_t position, int32_t request, int64_t out_slot) {
    // Those who wait below know that the first block runs and has done with the entry before.
    cluster_arrive(cluster_size);
    const uint8_t* const row = lane < kWarpRows ? state_row(a, request, position - (kRatio - 1) + kWarpRows * warp + lane) : nullptr;
    if (rank == 0) finisher.load_angles(a, position, kRatio);
    for (int slice = rank; slice < kDim / kSlice; slice += cluster_size) {
      Pooled pooled[4] = {{kNoScore, 0, 0}, {kNoScore, 0, 0}, {kNoScore, 0, 0}, {kNoScore, 0, 0}};
#pragma unroll
      for (int i = 0; i < kRows; i += kRowsInFlight) {
        pool_rows<kAligned>(a, row, lane / kHalfWarp * kRows + i, slice * kSlice + channel, pooled);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Pooled mine = pooled[j];
        const Pooled other{__shfl_xor_sync(kAllLanes, mine.peak, kHalfWarp), __shfl_xor_sync(kAllLanes, mine.sum, kHalfWarp),
                           __shfl_xor_sync(kAllLanes, mine.weighted, kHalfWarp)};
        const Pooled both = merge(mine, other);
        if (lane >= kHalfWarp) continue;
        peaks[warp][channel + j] = both.peak;
        sums[warp][channel + j] = both.sum;
        weighted[warp][channel + j] = both.weighted;
      }
      __syncthreads();
      if (slice == rank) cluster_wait(cluster_size);
      if (threadIdx.x < kSlice) {
        const int c = static_cast<int>(threadIdx.x);
        Pooled all{kNoScore, 0, 0};
#pragma unroll
        for (int i = 0; i < kWarps; ++i) all = merge(all, {peaks[i][c], sums[i][c], weighted[i][c]});
        store_first(cluster_size, &shared.entry[slice * kSlice + c], __fdividef(all.weighted, all.sum));
      }
      __syncthreads();
    }
    cluster_arrive(cluster_size);
    cluster_wait(cluster_size);
    if (rank != 0) return;
    float u[4] = {};
    if (threadIdx.x < Finisher<kDim>::kThreads) {
#pragma unroll
      for (int i = 0; i < 4; ++i) u[i] = shared.entry[4 * threadIdx.x + i];
    }
    finisher.store(a, u, out_slot, shared);
  });
}

// At most `most` groups, and an odd number of them where they are fewer than the tokens (for_each_entry).
int64_t groups(int64_t num_tokens, int64_t most) { return num_tokens <= most ? num_tokens : (most - 1) | 1; }

CompressArgs make_args(const CompressNormRopeStoreParams& p) {
  return {
      .state = p.state,
      .cache = p.cache,
      .block_table = p.block_table.ptr<int32_t>(),
      .table_stride = p.block_table.stride[0],
      .token_to_req = p.token_to_req.ptr<int32_t>(),
      .positions = p.positions.ptr<int64_t>(),
      .state_slots = p.state_slots.ptr<int64_t>(),
      .out_slots = p.out_slots.ptr<int64_t>(),
      .num_tokens = p.positions.shape[0],
      .norm_weight = p.norm_weight.ptr<float>(),
      .eps = p.eps,
      .cos_sin = p.cos_sin.ptr<float>(),
      .cos_sin_stride = p.cos_sin.stride[0],
      .rotary = static_cast<int32_t>(p.cos_sin.shape[1]),
      .hadamard = p.hadamard,
      .table_entries = p.block_table.shape[0] > 0 ? (p.block_table.shape[0] - 1) * p.block_table.stride[0] + p.block_table.shape[1] : 0};
}

template <int kDim, bool kAligned>
void launch_4(const CompressArgs& a, const ExecutionContext& context) {
  const int64_t blocks = groups(a.num_tokens, int64_t{kDim == 512 ? 4 : 8} * capabilities(context.device).num_sms);
  launch_early("compress_norm_rope_store", compress_4_kernel<kDim, kAligned>, {static_cast<uint32_t>(blocks), kDim / 4}, context, a);
}

template <int kDim, bool kAligned, int kWarps>
void launch_128(const CompressArgs& a, const ExecutionContext& context, int64_t most_blocks) {
  // Not by the device alone: on a later one, code for 8.0 may run, translated, which knows no clusters.
  const int cluster_size = launches_early(context.device) ? kDim / kSlice : 1;
  const int64_t clusters = groups(a.num_tokens, most_blocks / cluster_size);
  const LaunchShape shape{
      .grid = static_cast<uint32_t>(clusters * cluster_size), .block = kWarps * kWarpSize, .cluster = static_cast<uint32_t>(cluster_size)};
  launch_early("compress_norm_rope_store", compress_128_kernel<kDim, kAligned, kWarps>, shape, context, a, cluster_size);
}

template <int kDim, bool kAligned>
void launch_128(const CompressArgs& a, const ExecutionContext& context) {
  // Few entries at once: a row in a block as soon as can be. Many: smaller blocks, so that more entries are on the device. Always fewer
  // blocks than would fit: a cluster needs free places within one group of SMs, and must not wait for another to end.
  const int num_sms = capabilities(context.device).num_sms;
  const int64_t few = 2 * num_sms / (kDim / kSlice);
  if (a.num_tokens <= few) {
    launch_128<kDim, kAligned, 8>(a, context, 2 * num_sms);
  } else {
    launch_128<kDim, kAligned, 4>(a, context, 4 * num_sms);
  }
}

template <int kDim, bool kAligned>
void launch(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  p.ratio == 4 ? launch_4<kDim, kAligned>(make_args(p), context) : launch_128<kDim, kAligned>(make_args(p), context);
}

void run(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  if (p.positions.shape[0] == 0) return;
  const bool aligned = reinterpret_cast<uintptr_t>(p.state.data) % 16 == 0 && p.state.page_stride % 16 == 0;
  if (p.norm_weight.shape[0] == 512) {
    aligned ? launch<512, true>(p, context) : launch<512, false>(p, context);
  } else {
    aligned ? launch<128, true>(p, context) : launch<128, false>(p, context);
  }
}

}  // namespace

std::vector<Implementation<CompressNormRopeStoreParams>> compress_norm_rope_store() {
  return smxx_implementation<CompressNormRopeStoreParams>({.run = run});
}

}  // namespace strata::cuda
