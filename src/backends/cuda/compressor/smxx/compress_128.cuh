// Compressed entries of ratio 128: half a megabyte of state rows is too much for one SM. So a cluster computes an entry, 64 channels per
// CTA, with the rows divided among its warps. Each CTA stores its channels, which are also a quantisation block of the cache row; it needs
// only the other CTAs' sums of squares. Before sm_90, and for d = 128, one CTA computes the slices one after the other. One entry on an
// H200, with its rows prefetched: 2.6 us.
#pragma once

#include "backends/cuda/compressor/entry.cuh"
#include "backends/cuda/compressor/pooling.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/cluster_async.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"

namespace strata::cuda {

constexpr int kSlice = 64;  // channels, two a lane
constexpr int kWarps128 = 16;
// CTAs of a cluster.
#if __CUDA_ARCH__ >= 900
template <int kDim>
constexpr int kCluster = kDim == 512 ? kDim / kSlice : 1;
#else
template <int kDim>
constexpr int kCluster = 1;
#endif

constexpr int kThreads128 = kWarps128 * kWarpSize, kCombineLanes = kThreads128 / kSlice;  // that combine a channel

// The sum over all threads of a cluster, for the first warp of each CTA: every warp sends its own sum to all CTAs at once. Two buffers: no
// CTA is two entries ahead of another.
template <int kBlocks>
struct Exchange {
  float sums[2][kBlocks * kWarps128];
  uint64_t barriers[2];

  // Before any CTA sends; afterwards all barriers are initialised.
  __device__ __forceinline__ void init() {
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : barriers) ptx::mbarrier_init(ptx::shared_address(&barrier), kWarps128);
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive();
  }
  __device__ __forceinline__ void wait_for_init() { ptx::cluster_wait(); }

  // mine: the warp's. Called by all warps of all CTAs.
  __device__ __forceinline__ void send(int rank, float mine, unsigned entry) {
    const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = static_cast<int>(threadIdx.x / kWarpSize);
    const uint32_t barrier = ptx::shared_address(&barriers[entry % 2]);
    if (lane < kBlocks) {
      const uint32_t to = ptx::shared_address(&sums[entry % 2][rank * kWarps128 + warp]);
      ptx::store_async_f32(ptx::map_shared(to, lane), mine, ptx::map_shared(barrier, lane));
    }
    __syncwarp();
    if (lane != 0) return;
    warp > 0 ? ptx::mbarrier_arrive(barrier) : ptx::mbarrier_arrive_expect_tx(barrier, sizeof(sums[0]));
  }
  // By the first warp.
  __device__ __forceinline__ float sum(unsigned entry) {
    const int lane = static_cast<int>(threadIdx.x % kWarpSize);
    ptx::mbarrier_wait(ptx::shared_address(&barriers[entry % 2]), entry / 2 % 2);
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < kBlocks * kWarps128 / kWarpSize; ++i) all += sums[entry % 2][i * kWarpSize + lane];
    return lanes_sum(all);
  }
};

// Partial softmax-weighted sums of a slice, by warp. Padded: a warp reads four channels of eight warps.
struct SlicePartials {
  float peak[kWarps128][kSlice + 4], sum[kWarps128][kSlice + 4], weighted[kWarps128][kSlice + 4];

  __device__ __forceinline__ void write(int warp, int channel, const Pooled& p) {
    peak[warp][channel] = p.peak, sum[warp][channel] = p.sum, weighted[warp][channel] = p.weighted;
  }
  // The pooled value of a channel, for each of its lanes.
  __device__ __forceinline__ float pooled(int channel, int combine_lane) const {
    const Pooled mine = combine<kWarps128 / kCombineLanes>([&](int i) {
      const int warp = combine_lane + kCombineLanes * i;
      return Pooled{peak[warp][channel], sum[warp][channel], weighted[warp][channel]};
    });
    const float factor = weight_of(mine.peak, weight_base(lanes_max<kCombineLanes>(mine.peak)));
    return __fdividef(lanes_sum<kCombineLanes>(mine.weighted * factor), lanes_sum<kCombineLanes>(mine.sum * factor));
  }
};

template <int kDim, bool kAligned>
__global__ void __launch_bounds__(kThreads128, 1) compress_128_kernel(const __grid_constant__ CompressArgs a) {
  constexpr int32_t kRatio = 128;
  constexpr int kChannels = kSlice / kWarpSize, kRows = kRatio / kWarps128, kBlocks = kCluster<kDim>;
  __shared__ SlicePartials partials[2];  // of one slice and the next
  __shared__ float entry[kDim / kBlocks];
  const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int combine_lane = static_cast<int>(threadIdx.x) % kCombineLanes, combine_channel = static_cast<int>(threadIdx.x) / kCombineLanes;
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int64_t group = blockIdx.x / kBlocks, num_groups = gridDim.x / kBlocks;
  const int64_t back = kRatio - 1 - kRows * warp - lane % kRows;
  __shared__ Exchange<kBlocks> exchange;
  const auto column_of = [&](int slice) { return [=](int) { return slice * kSlice + kChannels * lane; }; };
  RowAddresses<kRows> rows;
  SpeculativeEntry speculative;  // for the CTA's first slice
  start_early([&] {
    if constexpr (kBlocks > 1) exchange.init();
    speculative = speculate_first<kRatio>(a, group, num_groups, back, [&](const Boundary& boundary, int64_t row) {
      if (warp == 0) touch_entry<kDim>(a, boundary, kRatio, lane);
      touch_row_channels(state_data(a) + row + rank * kSlice * 4, kDim * 4, kSlice * 4, lane / kRows, kWarpSize / kRows);
    });
    rows.find(state_data(a) + speculative.row, column_of(rank));
    if constexpr (kBlocks > 1) exchange.wait_for_init();
  });
  RowVectors<kRows, kChannels, kAligned> vectors;
  const auto load = [&] { vectors.load(rows, kDim * int{sizeof(float)}); };
  GroupTokens<kRatio> tokens(a, group, num_groups);
  ChannelSlice<kDim, kChannels> end;
  const auto prepare = [&](const Boundary& boundary) {
    if (kBlocks > 1 && warp == 0) end.prepare(a, boundary, kRatio, rank * kSlice + kChannels * lane);
  };
  unsigned slices = 0, entries = 0;
  const auto pool = [&] {
    SlicePartials& of_slice = partials[slices % 2];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) of_slice.write(warp, kChannels * lane + j, vectors.pool(j));
  };
  // Issued before the rows: while these load, it is determined whether the speculative entry holds.
  tokens.issue_loads();
  const int32_t page = speculative.page_now(a);
  if (speculative.token >= 0) {
    load();
    prepare(speculative.boundary);
  }
  tokens.for_each([&](int64_t token, const Boundary& boundary) {
    bool loaded = speculative.holds(token, boundary, page);
    speculative.token = -1;
    int64_t row = speculative.row;
    if (!loaded) {
      row = state_row(a, boundary.request, boundary.position - back);
      prepare(boundary);
    }
    float u = 0.0f;
    for (int slice = rank; slice < kDim / kSlice; slice += kBlocks) {
      if (!loaded) {
        rows.find(state_data(a) + row, column_of(slice));
        load();
      }
      pool();
      loaded = false;
      __syncthreads();
      u = partials[slices++ % 2].pooled(combine_channel, combine_lane);
      if (combine_lane == 0) entry[(slice - rank) / kBlocks * kSlice + combine_channel] = u;
    }
    __syncthreads();  // the whole entry has arrived
    if constexpr (kBlocks > 1) {
      float square = u * u;  // of a channel, which kCombineLanes lanes hold
#pragma unroll
      for (int step = kCombineLanes; step < kWarpSize; step *= 2) square += __shfl_xor_sync(kAllLanes, square, step);
      exchange.send(rank, square, entries);
      const unsigned exchange_index = entries++;
      if (warp > 0) return true;
      float own[kChannels];
#pragma unroll
      for (int i = 0; i < kChannels; ++i) own[i] = entry[kChannels * lane + i];
      end.rotate(own);
      float amax = lanes_max(amax_of(own));
      normalise<kDim>(own, amax, exchange.sum(exchange_index), a.eps);
      store_channels(a.cache, end.out, own, amax, rank * kSlice + kChannels * lane, lane);
    } else {
      constexpr int kEndThreads = kDim == 512 ? 256 : kWarpSize;
      using Finish = Finisher<kDim, kEndThreads>;
      __shared__ typename Finish::Shared shared;
      if (threadIdx.x >= kEndThreads) return true;
      Finish finisher(entries++);
      finisher.prepare(a, boundary, kRatio);
      float own[Finish::kChannels];
#pragma unroll
      for (int i = 0; i < Finish::kChannels; ++i) own[i] = entry[Finish::kChannels * threadIdx.x + i];
      finisher.store(a, own, shared);
    }
    return true;
  });
}

}  // namespace strata::cuda
