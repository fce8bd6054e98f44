// Many compressed entries of ratio 128 (V4 9.1 and 9.2 "compress"), d = 512. TMA streams the state rows through a ring in shared memory,
// across entries, so that loads never wait for the epilogue of an entry. Floor: the state rows, 512 KB an entry; 64 entries 33.5 MB, 8.5 us
// to read on an H200. Reached: 8.1 us; the 32 entries of a prompt, 16.8 MB: 6.3 us.
//
// A cluster of four CTAs computes an entry, each a quarter of its rows. In a CTA one warp looks entries up, signals the others and loads
// rows, four a stage; eight warps pool them, two channels a thread. CTAs send their partial softmax-weighted sums to the first CTA, which
// finishes the entry while the others continue.
#include "backends/cuda/compressor/entry.cuh"
#include "backends/cuda/compressor/pooling.cuh"
#include "backends/cuda/compressor/sm90/compress_stream.h"
#include "backends/cuda/device/pipeline_state.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/cluster_async.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/tma.cuh"

namespace strata::cuda {
namespace {

constexpr int32_t kRatio = 128;
constexpr int kDim = 512, kChannels = 2, kPoolThreads = kDim / kChannels, kPoolWarps = kPoolThreads / kWarpSize;
constexpr int kThreads = kPoolThreads + kWarpSize;
constexpr int kCluster = 4, kBlockRows = kRatio / kCluster;
static_assert(kBlockRows == kWarpSize, "a row for each lane that asks");
constexpr int kStageRows = 4, kEntryStages = kBlockRows / kStageRows;
// Stages of the ring. A prompt of 4096 tokens, an entry per group: 6.4 us with 4, 7.0 with 5; 64 decode entries: 8.4 and 8.2.
constexpr int kPromptStages = 4, kDecodeStages = 5;
constexpr int kHalfBytes = kDim * 4, kRowBytes = 2 * kHalfBytes;  // a row: values, scores
constexpr int kLaneTokens = 4;                                    // tokens that a lane reads together: in a prompt, most of a group's
constexpr int64_t kDecodeTokens = 128;                            // up to here rows come from earlier steps, and are prefetched early
constexpr int64_t kEnd = -1;                                      // instead of a position: no more entries
constexpr int32_t kSpeculative = 1;                               // instead of a request: the speculative entry is not confirmed yet

using Finish = Finisher<kDim, kPoolThreads>;
using Vectors = RowVectors<kStageRows, kChannels, true>;

template <int kStageCount>
struct Shared {
  static constexpr int kStages = kStageCount;
  static_assert(kStages <= kEntryStages && kStages * kStageRows <= 32);  // fill(): a lane per row of the ring, all of one entry
  uint8_t stages[kStages][kStageRows * kRowBytes];
  float2 partials[kCluster - 1][3][kPoolThreads];  // peaks, sums and weighted sums of the other CTAs, in the first
  uint64_t full[kStages], empty[kStages];
  // What the warp that looks entries up publishes, and its barriers. More slots than entries in flight.
  static constexpr int kEntries = kStages + 2;
  Boundary entries[kEntries];
  uint64_t published[kEntries];
  uint64_t verdict;
  bool speculation_holds;                  // valid after `verdict`
  uint64_t partials_full, partials_empty;  // in the first CTA; in the others
  Finish::Shared finish;
};

// How many positions before the boundary the lane's row is.
__device__ __forceinline__ int64_t rows_back(int rank) {
  return kRatio - 1 - kBlockRows * rank - static_cast<int>(threadIdx.x % kWarpSize);
}

template <int kStages>
__device__ __forceinline__ SpeculativeEntry speculative_rows(const CompressArgs& a, int64_t group, int64_t num_groups, int rank) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  return speculate_first<kRatio, kLaneTokens>(a, group, num_groups, rows_back(rank), [&](const Boundary& boundary, int64_t row) {
    if (rank == 0) touch_entry<kDim>(a, boundary, kRatio, lane);
    if (a.num_tokens <= kDecodeTokens && lane < kStages * kStageRows) ptx::bulk_prefetch_l2(state_data(a) + row, kRowBytes);
  });
}

// By one warp.
template <int kStages>
__device__ __forceinline__ void load_rows(const CompressArgs& a, Shared<kStages>& shared, int64_t group, int64_t num_groups, int rank,
                                          SpeculativeEntry speculative) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int64_t back = rows_back(rank);
  PipelineState<kStages> stage;
  PipelineState<Shared<kStages>::kEntries> entry;
  // A row belongs to one entry: prompts evict rows from L2 first, so that look-ups stay. Not decode steps: 64 entries would take 9.1 us for
  // 8.1.
  const uint64_t policy = ptx::evict_first_policy();
  const auto load_row = [&](int64_t row, int to) {
    const uint32_t barrier = ptx::shared_address(shared.full + to);
    const uint32_t target = ptx::shared_address(shared.stages[to] + lane % kStageRows * kRowBytes);
    ptx::mbarrier_arrive_expect_tx(barrier, kRowBytes);
    if constexpr (kStages == kPromptStages) {
      ptx::bulk_load(target, state_data(a) + row, kRowBytes, barrier, policy);
    } else {
      ptx::bulk_load(target, state_data(a) + row, kRowBytes, barrier);
    }
  };
  const auto load = [&](int64_t row, int begin, int end) {
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      if (lane / kStageRows == i) {
        ptx::mbarrier_wait(ptx::shared_address(shared.empty + stage.index), stage.parity ^ 1);
        load_row(row, static_cast<int>(stage.index));
      }
      stage.next();
      __syncwarp();  // no lane reads a stage two phases later, whose parity is the present one's
    }
  };
  // Fills the whole ring, which is still empty.
  const auto fill = [&](int64_t row) {
    if (lane < kStages * kStageRows) load_row(row, lane / kStageRows);
    stage.parity ^= 1;
    __syncwarp();
  };
  const auto publish = [&](const Boundary& boundary) {
    if (lane == 0) {
      shared.entries[entry.index] = boundary;
      ptx::mbarrier_arrive(ptx::shared_address(shared.published + entry.index));
    }
    entry.next();
  };
  // The speculative entry is pooled before it is confirmed.
  bool speculated = speculative.token >= 0;
  GroupTokens<kRatio, kLaneTokens> tokens(a, group, num_groups);
  tokens.issue_loads();  // after the rows it would arrive late
  const int32_t page = speculative.page_now(a);
  if (speculated) {
    publish({speculative.boundary.position, kSpeculative, speculative.boundary.out_slot});
    fill(speculative.row);
    load(speculative.row, kStages, kEntryStages);
  }
  const auto judge = [&](bool holds) {
    if (lane == 0) {
      shared.speculation_holds = holds;
      ptx::mbarrier_arrive(ptx::shared_address(&shared.verdict));
    }
    speculated = false;
  };
  // An entry's rows are looked up before those of the previous entry wait for their stages.
  Boundary next{kEnd, 0, 0};
  int64_t next_row = 0;
  const auto load_next = [&] {
    if (next.position == kEnd) return;
    publish(next);
    load(next_row, 0, kEntryStages);
  };
  tokens.for_each([&](int64_t token, const Boundary& boundary) {
    if (speculated) {
      const bool holds = speculative.holds(token, boundary, page);
      judge(holds);
      if (holds) return true;
    }
    const int64_t row = state_row(a, boundary.request, boundary.position - back);
    load_next();
    next = {boundary.position, 0, boundary.out_slot};
    next_row = row;
    return true;
  });
  load_next();
  if (speculated) judge(false);
  publish({kEnd, 0, 0});
}

// Reads the thread's channels of a stage.
__device__ __forceinline__ void read_stage(const uint8_t* stage, Vectors& vectors) {
#pragma unroll
  for (int i = 0; i < kStageRows; ++i) {
    const auto* const at = reinterpret_cast<const uint2*>(stage + i * kRowBytes) + threadIdx.x;
    const uint2 value = at[0], score = at[kHalfBytes / sizeof(uint2)];
    vectors.value[i][0] = value.x, vectors.value[i][1] = value.y;
    vectors.score[i][0] = score.x, vectors.score[i][1] = score.y;
  }
}

// By the other warps.
template <int kStages>
__device__ __forceinline__ void pool_rows(const CompressArgs& a, Shared<kStages>& shared, int rank) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const uint32_t partials_full = ptx::shared_address(&shared.partials_full), partials_empty = ptx::shared_address(&shared.partials_empty);
  PipelineState<kStages> stage;
  PipelineState<Shared<kStages>::kEntries> entry;
  uint32_t partials_parity = 0;
  Finish finisher;
  // The first CTA must signal that partial sums may be sent again, once another entry follows: after the last, CTAs exit.
  bool owed = false;
  for (;; entry.next()) {
    ptx::mbarrier_wait(ptx::shared_address(shared.published + entry.index), entry.parity);
    const Boundary boundary = shared.entries[entry.index];
    if (boundary.position == kEnd) return;
    if (owed) {
      __syncwarp();
      if (lane > 0 && lane < kCluster) ptx::mbarrier_arrive_mapped(ptx::map_shared(partials_empty, lane));
      owed = false;
    }
    if (rank == 0) finisher.prepare(a, boundary, kRatio);
    Pooled pooled[kChannels];
#pragma unroll
    for (Pooled& p : pooled) p = {-INFINITY, 0.0f, 0.0f};
#pragma unroll 1
    for (int i = 0; i < kEntryStages; ++i) {
      ptx::mbarrier_wait(ptx::shared_address(shared.full + stage.index), stage.parity);
      Vectors vectors;
      read_stage(shared.stages[stage.index], vectors);
      ptx::mbarrier_arrive(ptx::shared_address(shared.empty + stage.index));
      stage.next();
#pragma unroll
      for (int j = 0; j < kChannels; ++j) vectors.add_to(pooled[j], j);
    }
    if (boundary.request == kSpeculative) {
      ptx::mbarrier_wait(ptx::shared_address(&shared.verdict), 0);
      if (!shared.speculation_holds) continue;
    }
    if (rank > 0) {
      ptx::mbarrier_wait(partials_empty, partials_parity ^ 1);
      const uint32_t to = ptx::map_shared(ptx::shared_address(&shared.partials[rank - 1][0][threadIdx.x]), 0);
      const uint32_t arrived = ptx::map_shared(partials_full, 0);
      constexpr int kNext = kPoolThreads * int{sizeof(float2)};
      ptx::store_async_f32x2(to, pooled[0].peak, pooled[1].peak, arrived);
      ptx::store_async_f32x2(to + kNext, pooled[0].sum, pooled[1].sum, arrived);
      ptx::store_async_f32x2(to + 2 * kNext, pooled[0].weighted, pooled[1].weighted, arrived);
      partials_parity ^= 1;
      continue;
    }
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(partials_full, sizeof(shared.partials));
    ptx::mbarrier_wait(partials_full, partials_parity);
    partials_parity ^= 1;
    float u[kChannels];
    float2 peak[kCluster - 1], sum[kCluster - 1], weighted[kCluster - 1];
#pragma unroll
    for (int i = 0; i < kCluster - 1; ++i) {
      const auto& partial = shared.partials[i];
      peak[i] = partial[0][threadIdx.x], sum[i] = partial[1][threadIdx.x], weighted[i] = partial[2][threadIdx.x];
    }
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const Pooled all = combine<kCluster>([&](int i) {
        const auto of = [&](float2 v) { return j == 0 ? v.x : v.y; };
        return i == 0 ? pooled[j] : Pooled{of(peak[i - 1]), of(sum[i - 1]), of(weighted[i - 1])};
      });
      u[j] = __fdividef(all.weighted, all.sum);
    }
    owed = true;
    finisher.store(a, u, shared.finish);
  }
}

template <int kStages>
__device__ __forceinline__ void init(Shared<kStages>& shared) {
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kStages; ++i) {
    ptx::mbarrier_init(ptx::shared_address(shared.full + i), kStageRows);
    ptx::mbarrier_init(ptx::shared_address(shared.empty + i), kPoolThreads);
  }
  for (uint64_t& barrier : shared.published) ptx::mbarrier_init(ptx::shared_address(&barrier), 1);
  ptx::mbarrier_init(ptx::shared_address(&shared.verdict), 1);
  ptx::mbarrier_init(ptx::shared_address(&shared.partials_full), 1);
  ptx::mbarrier_init(ptx::shared_address(&shared.partials_empty), kPoolWarps);
  ptx::fence_mbarrier_init();
}

template <int kStages>
__global__ void __launch_bounds__(kThreads, 2) compress_128_stream_kernel(const __grid_constant__ CompressArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kStages>*>(memory);
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const int64_t group = blockIdx.x / kCluster, num_groups = gridDim.x / kCluster;
  const bool loads = threadIdx.x >= kPoolThreads;
  SpeculativeEntry speculative;
  start_early([&] {
    init(shared);
    ptx::cluster_arrive();
    if (loads) speculative = speculative_rows<kStages>(a, group, num_groups, rank);
    ptx::cluster_wait();
  });
  if (loads) {
    load_rows(a, shared, group, num_groups, rank, speculative);
  } else {
    pool_rows(a, shared, rank);
  }
}

template <int kStages>
void launch(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  const int64_t num_groups = entry_groups(p.positions.shape[0], capabilities(context.device).num_sms / kCluster);
  constexpr auto kKernel = compress_128_stream_kernel<kStages>;
  allow_shared_bytes(kKernel, sizeof(Shared<kStages>));
  const LaunchShape shape{.grid = static_cast<uint32_t>(num_groups * kCluster),
                          .block = kThreads,
                          .shared_bytes = sizeof(Shared<kStages>),
                          .cluster = kCluster,
                          .spread = true};
  launch_early("compress_norm_rope_store", kKernel, shape, context, compress_args(p));
}

}  // namespace

void compress_128_stream(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.positions.shape[0];
  num_tokens <= kDecodeTokens ? launch<kDecodeStages>(p, context) : launch<kPromptStages>(p, context);
}

}  // namespace strata::cuda
