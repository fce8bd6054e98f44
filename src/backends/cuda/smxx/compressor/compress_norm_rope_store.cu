// Compressed entries from the state rows of their windows: V4 9.1 and 9.2 "compress". Floor: the state rows, 8 * d bytes each: 32 KB an
// entry for ratio 4 and d = 512, 512 KB for ratio 128; the entry itself is some 600 bytes. A prompt of 4096 tokens on an H200, ratio
// 4: 12.6 us of 7.8, the launch and a chain of three dependent reads (token, page, row) included.
//
// Ratio 4: a block per entry, two channels per thread (four of an indexer's entry), all rows on their way at once.
// Ratio 128: half a megabyte is too much for one SM, so a cluster works on an entry, 64 channels per block, the rows split over its warps;
// the blocks put their pooled channels into the shared memory of the first, which finishes the entry. Before sm_90 one block does the
// slices one after the other.
#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/smxx/compressor/entry.cuh"
#include "backends/cuda/smxx/compressor/pooling.cuh"

namespace strata::cuda {
namespace {

// Blocks that share an entry of ratio 128: a cluster with a slice each, from sm_90 on.
constexpr int kSlice = 64;  // channels, by either half of each warp
#if __CUDA_ARCH__ >= 900
template <int kDim>
constexpr int kCluster = kDim / kSlice;
#else
template <int kDim>
constexpr int kCluster = 1;
#endif

__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  ptx::cluster_arrive();
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  ptx::cluster_wait();
#endif
}
// *own = v in the cluster's first block.
__device__ __forceinline__ void store_first(float* own, float v) {
#if __CUDA_ARCH__ >= 900
  ptx::store_cluster_f32(ptx::map_shared(static_cast<uint32_t>(__cvta_generic_to_shared(own)), 0), v);
#else
  *own = v;
#endif
}

// Where the state rows of a group's first entry begin, from what tokens and the block table say while it may still be written
// (start_early): they are asked for before it is known that they are the entry's. 0, where a row is, if there is no entry. `back`: how far
// before the boundary the lane's row is.
template <int kRatio, class Meanwhile>
__device__ __forceinline__ int64_t guess_first_row(const CompressArgs& a, int64_t group, int64_t num_groups, int64_t back,
                                                   const Meanwhile& meanwhile) {
  int64_t row = 0;
  for_each_entry<kRatio>(a, group, num_groups, ReadGuess{}, [&](const Boundary& boundary) {
    row = guess_state_row(a, boundary.request, boundary.position - back);
    meanwhile(boundary, row);
    return false;
  });
  return row;
}

template <int kDim>
constexpr int kThreads4 = kDim == 512 ? 256 : 32;
template <int kDim, bool kFew>
constexpr int kBlocks4 = kDim == 128 ? 16
                         : kFew      ? 2
                                     : 4;  // of an SM

// kFew: the rows are brought near early.
template <int kDim, bool kAligned, bool kFew>
__global__ void __launch_bounds__(kThreads4<kDim>, kBlocks4<kDim, kFew>) compress_4_kernel(const __grid_constant__ CompressArgs a) {
  constexpr int32_t kRatio = 4, kRows = 2 * kRatio;
  using Finish = Finisher<kDim, kThreads4<kDim>>;
  constexpr int kChannels = Finish::kChannels;
  using Pieces = RowPieces<kRows, kChannels, kAligned>;
  __shared__ typename Finish::Shared shared;
  const int64_t back = kRows - 1 - static_cast<int>(threadIdx.x % kRows);
  // The previous window is the first half of the columns, the current one the second.
  const auto column = [&](int row) { return (row < kRatio ? 0 : kDim) + kChannels * static_cast<int>(threadIdx.x); };
  // Blocks of a prompt's wider rows fill the device: the next kernel's have no time for guesses.
  constexpr bool kGuesses = kFew || kDim == 128;
  int64_t asked = -1;
  start_early([&] {
    if constexpr (!kGuesses) return;
    asked = guess_first_row<kRatio>(a, blockIdx.x, gridDim.x, back, [&](const Boundary& boundary, int64_t row) {
      Finish::touch_all(a, boundary, kRatio);
      if (!kFew) return;
      const int64_t window = back < kRatio ? 4 * kDim : 0;
      touch_row_part(a, row + window, kDim * 4, static_cast<int>(threadIdx.x) / kRows, kThreads4<kDim> / kRows);
    });
  });
  Pieces pieces;
  if constexpr (kGuesses) pieces.load(state_data(a), max(asked, int64_t{0}), 0, a.state.row_dim, column);
  Finish finisher;
  for_each_entry<kRatio>(a, blockIdx.x, gridDim.x, ReadValue{}, [&](const Boundary& boundary) {
    const int64_t row = state_row(a, boundary.request, boundary.position - back);
    finisher.prepare(a, boundary, kRatio);
    if (__any_sync(kAllLanes, row != asked)) pieces.load(state_data(a), row, 0, a.state.row_dim, column);
    asked = -1;
    if (boundary.position < kRatio) pieces.drop(kRatio);  // there is no previous window
    float u[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const Pooled pooled = pieces.pool(j);
      u[j] = __fdividef(pooled.weighted, pooled.sum);
    }
    finisher.store(a, u, shared);
    return true;
  });
}

constexpr int kHalfWarp = kWarpSize / 2;

// Few entries: blocks of 8 warps, and all of a thread's rows on their way together. Many: smaller blocks, so that 64 entries are on the
// device at once, and four rows at a time.
template <int kDim, bool kAligned, bool kFew>
__global__ void __launch_bounds__((kFew ? 8 : 4) * kWarpSize, kFew ? 2 : 6) compress_128_kernel(const __grid_constant__ CompressArgs a) {
  constexpr int kWarps = kFew ? 8 : 4, kThreads = kWarps * kWarpSize, kBatch = kFew ? 8 : 4;
  constexpr int32_t kRatio = 128;
  constexpr int kChannels = kSlice / kHalfWarp, kParts = 2 * kWarps;
  constexpr int kWarpRows = kRatio / kWarps, kRows = kWarpRows / 2, kBatches = kRows / kBatch;  // of a warp, of a thread
  static_assert(kWarpRows <= kWarpSize);
  using Finish = Finisher<kDim, kThreads>;
  using Pieces = RowPieces<kBatch, kChannels, kAligned>;
  __shared__ float peaks[kParts][kSlice], sums[kParts][kSlice], weighted[kParts][kSlice];
  __shared__ typename Finish::Shared shared;
  const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int rank = static_cast<int>(blockIdx.x) % kCluster<kDim>, channel = lane % kHalfWarp * kChannels;
  const int half = lane / kHalfWarp, part = 2 * warp + half;
  const int64_t group = blockIdx.x / kCluster<kDim>, num_groups = gridDim.x / kCluster<kDim>;
  const int64_t back = kRatio - 1 - kWarpRows * warp - lane % kWarpRows;
  const auto touch_slice = [&](int64_t row, int slice) {
    touch_row_part(a, row + slice * kSlice * 4, kSlice * 4, lane / kWarpRows, kWarpSize / kWarpRows);
  };
  int64_t asked = -1;  // for the block's first slice
  start_early([&] {
    if constexpr (!kFew) return;
    asked = guess_first_row<kRatio>(a, group, num_groups, back, [&](const Boundary& boundary, int64_t row) {
      if (rank == 0) Finish::touch_all(a, boundary, kRatio);
      touch_slice(row, rank);
    });
  });
  Pieces pieces;
  const auto load = [&](int64_t row, int slice, int batch) {
    pieces.load(state_data(a), row, half * kRows + batch * kBatch, a.state.row_dim, [&](int) { return slice * kSlice + channel; });
  };
  if constexpr (kFew) load(max(asked, int64_t{0}), rank, 0);
  Finish finisher;
  for_each_entry<kRatio>(a, group, num_groups, ReadValue{}, [&](const Boundary& boundary) {
    // Those who wait below know that the first block runs and has done with the entry before.
    cluster_arrive();
    const int64_t row = state_row(a, boundary.request, boundary.position - back);
    if (!kFew && rank == 0) Finish::touch_all(a, boundary, kRatio);
    for (int slice = rank; slice < kDim / kSlice; slice += kCluster<kDim>) {
      if (!kFew || __any_sync(kAllLanes, row != asked)) load(row, slice, 0);
      asked = -1;
      Pooled pooled[kChannels];
#pragma unroll
      for (int batch = 0; batch < kBatches; ++batch) {
        if (batch > 0) load(row, slice, batch);
#pragma unroll
        for (int j = 0; j < kChannels; ++j) {
          const Pooled more = pieces.pool(j);
          pooled[j] = batch == 0 ? more : merge<2>([&](int i) { return i == 0 ? pooled[j] : more; });
        }
      }
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        peaks[part][channel + j] = pooled[j].peak;
        sums[part][channel + j] = pooled[j].sum;
        weighted[part][channel + j] = pooled[j].weighted;
      }
      __syncthreads();
      if (slice == rank) cluster_wait();
      if (threadIdx.x < kSlice) {
        const int c = static_cast<int>(threadIdx.x);
        const Pooled all = merge<kParts>([&](int i) { return Pooled{peaks[i][c], sums[i][c], weighted[i][c]}; });
        store_first(&shared.entry[slice * kSlice + c], __fdividef(all.weighted, all.sum));
      }
      __syncthreads();
    }
    cluster_arrive();
    if (rank == 0) finisher.prepare(a, boundary, kRatio);
    cluster_wait();
    if (rank != 0) return true;
    constexpr int kOwn = Finish::kChannels;
    float u[kOwn] = {};
    if (threadIdx.x < Finish::kThreads) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) u[i] = shared.entry[kOwn * threadIdx.x + i];
    }
    finisher.store(a, u, shared);
    return true;
  });
}

// At most `most` groups, and an odd number of them where they are fewer than the tokens (for_each_entry).
int64_t groups(int64_t num_tokens, int64_t most) { return num_tokens <= most ? num_tokens : (most - 1) | 1; }

CompressArgs make_args(const CompressNormRopeStoreParams& p) {
  return {.state = p.state,
          .cache = p.cache,
          .block_table = p.block_table.ptr<int32_t>(),
          .table_stride = p.block_table.stride[0],
          .table_rows = p.block_table.shape[0],
          .table_columns = p.block_table.shape[1],
          .token_to_req = p.token_to_req.ptr<int32_t>(),
          .positions = p.positions.ptr<int64_t>(),
          .state_slots = p.state_slots.ptr<int64_t>(),
          .out_slots = p.out_slots.ptr<int64_t>(),
          .num_tokens = p.positions.shape[0],
          .norm_weight = p.norm_weight.ptr<float>(),
          .eps = p.eps,
          .cos_sin = p.cos_sin.ptr<float>(),
          .cos_sin_stride = p.cos_sin.stride[0],
          .num_angles = p.cos_sin.shape[0],
          .rotary = static_cast<int32_t>(p.cos_sin.shape[1]),
          .hadamard = p.hadamard};
}

template <int kDim, bool kAligned>
void launch_4(const CompressArgs& a, const ExecutionContext& context) {
  // Rows of few tokens come from steps before this one and are brought near early. Those of a prompt come from the kernel in front, and do
  // not fit in L2 beside what that one works on.
  constexpr int64_t kEntryBytes = 8 * kDim * 8, kFewBytes = 8 << 20;
  const bool few = a.num_tokens * kEntryBytes <= kFewBytes;
  const int64_t blocks = groups(a.num_tokens, int64_t{kDim == 512 ? 4 : 8} * capabilities(context.device).num_sms);
  const auto kernel = few ? compress_4_kernel<kDim, kAligned, true> : compress_4_kernel<kDim, kAligned, false>;
  launch_early("compress_norm_rope_store", kernel, {static_cast<uint32_t>(blocks), kThreads4<kDim>}, context, a);
}

template <int kDim, bool kAligned, bool kFew>
void launch_128(const CompressArgs& a, const ExecutionContext& context, int64_t most_clusters) {
  // kCluster of the code that runs: on a later device, code for 8.0 may run, translated, which knows no clusters.
  const int cluster_size = launches_early(context.device) ? kDim / kSlice : 1;
  const LaunchShape shape{.grid = static_cast<uint32_t>(groups(a.num_tokens, most_clusters) * cluster_size),
                          .block = (kFew ? 8 : 4) * kWarpSize,
                          .cluster = static_cast<uint32_t>(cluster_size)};
  launch_early("compress_norm_rope_store", compress_128_kernel<kDim, kAligned, kFew>, shape, context, a);
}

template <int kDim, bool kAligned>
void launch_128(const CompressArgs& a, const ExecutionContext& context) {
  // Always fewer blocks than would fit: a cluster needs free places within one group of SMs, and must not wait for another to end.
  const int64_t num_sms = capabilities(context.device).num_sms, an_sm = num_sms * kSlice / kDim;  // clusters with a block for each SM
  if (a.num_tokens <= an_sm) {
    launch_128<kDim, kAligned, true>(a, context, an_sm);
  } else {
    launch_128<kDim, kAligned, false>(a, context, 4 * an_sm);
  }
}

template <int kDim, bool kAligned>
void launch(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  p.ratio == 4 ? launch_4<kDim, kAligned>(make_args(p), context) : launch_128<kDim, kAligned>(make_args(p), context);
}

void run(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  if (p.positions.shape[0] == 0 || p.state.num_pages == 0) return;  // without a state nothing is complete
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
