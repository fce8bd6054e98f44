// Many compressed entries of ratio 4 (V4 9.1 and 9.2 "compress"), d = 512. TMA streams the state rows through a ring in shared memory, one
// entry a stage, so that loads never wait for the epilogue of an entry. Floor: the state rows, 32 KB an entry; a prompt of 4096 tokens 33.5
// MB, 8.4 us to read on an H200. Reached: 10.5 us.
//
// A CTA has the entries of neighbouring tokens. One warp looks them up, four at a time, and loads their rows; eight warps pool and finish
// them, two channels a thread.
// Look-ups are issued before the rows of earlier entries: after megabytes of rows in flight each would take microseconds.
#include "backends/cuda/compressor/entry.cuh"
#include "backends/cuda/compressor/pooling.cuh"
#include "backends/cuda/compressor/sm90/compress_stream.h"
#include "backends/cuda/device/pipeline_state.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

constexpr int32_t kRatio = 4, kRows = 2 * kRatio;
constexpr int kDim = 512, kChannels = 2, kPoolThreads = kDim / kChannels;
constexpr int kThreads = kPoolThreads + kWarpSize;
constexpr int kStages = 3, kBlocksPerSm = 2, kHalfBytes = kDim * 4;  // values, or scores, of a row's window
constexpr int kQuad = kWarpSize / kRows;                             // entries that are looked up together
constexpr int kSpeculativeEntries = kStages < kQuad ? kStages : kQuad;

using Finish = Finisher<kDim, kPoolThreads>;
using Vectors = RowVectors<kRows, kChannels, true>;

// Contents of a stage: how many rows count, and whether the entry is speculative; or no more entries.
enum Content : int32_t { kSpeculative = 1 << 8, kEnd = -1 };

struct alignas(128) Stage {
  uint8_t values[kRows][kHalfBytes], scores[kRows][kHalfBytes];
  float angles[kDim];
  RowAddress out;
  int32_t content;
};

struct Shared {
  Stage stages[kStages];
  uint64_t full[kStages], empty[kStages];
  uint64_t verdict;
  bool speculation_holds;  // valid after `verdict`
  Finish::Shared finish;
};
constexpr int kFullArrivals = kRows + kWarpSize + 1;  // rows, angles, contents of the stage

// A lane's token.
template <class Read>
struct LaneToken {
  int64_t index, state_slot, out_slot, position;
  int32_t request;

  __device__ __forceinline__ LaneToken(const CompressArgs& a, int64_t t) : index(t) {
    const Read read;
    const int64_t there = min(t, a.num_tokens - 1);
    state_slot = read(a.state_slots + there);
    out_slot = read(a.out_slots + there);
    position = read(a.positions + there);
    request = read(a.token_to_req + there);
  }
  // The lanes before `end` whose tokens complete an entry.
  __device__ __forceinline__ unsigned found(int64_t end) const {
    return __ballot_sync(kAllLanes,
                         (index < end) & (state_slot >= 0) & (out_slot >= 0) & completes_entry(position, kRatio) & (request >= 0));
  }
};

// Four entries: lane l has row l % 8 of entry l / 8.
struct Quad {
  int64_t token = -1, position = 0, out_slot = 0;  // of the lane's entry; token -1: none
  int32_t request = 0;
  int64_t table_index = 0;  // of the row's page in the block table
  uint32_t row_on_page = 0;
  int32_t page = 0;

  // The entries of the first four of `found`, lanes of tokens.
  template <class Read>
  __device__ __forceinline__ void find(const CompressArgs& a, const LaneToken<Read>& tokens, unsigned found) {
    const int lane = static_cast<int>(threadIdx.x % kWarpSize);
#pragma unroll
    for (int i = 0; i < kQuad - 1; ++i) found = i < lane / kRows ? found & (found - 1) : found;
    const int from = found != 0 ? __ffs(static_cast<int>(found)) - 1 : 0;
    token = __shfl_sync(kAllLanes, tokens.index, from);
    position = __shfl_sync(kAllLanes, tokens.position, from);
    out_slot = __shfl_sync(kAllLanes, tokens.out_slot, from);
    request = __shfl_sync(kAllLanes, tokens.request, from);
    const PagePosition at = a.state_page_size.position(max(position - (kRows - 1 - lane % kRows), int64_t{0}));
    table_index = request * a.table_stride + at.page;
    row_on_page = at.row;
    if (found == 0) token = -1;
  }
  // Whether both are the same tokens' entries, or both none.
  __device__ __forceinline__ bool is(const Quad& other) const {
    return token == other.token && (token < 0 || (position == other.position && out_slot == other.out_slot && request == other.request));
  }
  __device__ __forceinline__ int64_t row(const CompressArgs& a) const { return row_of_page(a, max(page, 0), row_on_page); }
};

// The first entries according to the data while the preceding kernel may still run: only addresses that exist in any case.
__device__ __forceinline__ Quad speculative_quad(const CompressArgs& a, int64_t begin, int64_t end) {
  const LaneToken<SpeculativeRead> tokens(a, begin + static_cast<int>(threadIdx.x % kWarpSize));
  Quad quad;
  quad.find(a, tokens, tokens.found(end));
  const bool exists =
      quad.token >= 0 && quad.request < a.table_rows && quad.position < a.num_angles && quad.position / a.state.page_size < a.table_columns;
  if (exists) quad.page = speculative_load(a.block_table + quad.table_index);
  // An entry needs all of its rows.
  const unsigned missing = ~__ballot_sync(kAllLanes, exists && quad.page < a.state.num_pages);
  if ((missing >> (threadIdx.x % kWarpSize / kRows * kRows) & 0xFFu) != 0) quad.token = -1;
  return quad;
}

class Loader {
 public:
  __device__ __forceinline__ Loader(const CompressArgs& a, Shared& shared) : a_(a), shared_(shared) {}

  // Loads the rows and angles of entry i of a quad, once the stage is free.
  __device__ __forceinline__ void load(const Quad& quad, int i) {
    Stage& stage = shared_.stages[filled_.index];
    const uint32_t full = ptx::shared_address(shared_.full + filled_.index);
    ptx::mbarrier_wait(ptx::shared_address(shared_.empty + filled_.index), filled_.parity ^ 1);
    if (lane() / kRows == i) {
      const int row = lane() % kRows;
      const uint8_t* const values = state_data(a_) + quad.row(a_) + (row < kRatio ? 0 : kHalfBytes);
      ptx::mbarrier_arrive_expect_tx(full, 2 * kHalfBytes);
      ptx::bulk_load(ptx::shared_address(stage.values[row]), values, kHalfBytes, full, policy_);
      ptx::bulk_load(ptx::shared_address(stage.scores[row]), values + int64_t{a_.state.row_dim} * 2, kHalfBytes, full, policy_);
    }
    const int64_t position = __shfl_sync(kAllLanes, quad.position, i * kRows);
    const float* const angles = a_.cos_sin + compressor_window(position, kRatio).rope_position * a_.cos_sin_stride;
    for (int k = lane(); k < a_.rotary; k += kWarpSize) ptx::cp_async_4(ptx::shared_address(stage.angles + k), angles + k);
    ptx::cp_async_arrive(full);
    filled_.next();
  }
  // Publishes the contents of the next stage: entry i of a quad.
  __device__ __forceinline__ void publish(const Quad& quad, int i, int32_t speculated = 0) {
    const int64_t position = __shfl_sync(kAllLanes, quad.position, i * kRows), out_slot = __shfl_sync(kAllLanes, quad.out_slot, i * kRows);
    Stage& stage = shared_.stages[published_.index];
    if (lane() == 0) stage.out = a_.rows.row(out_slot);
    publish((position < kRatio ? kRatio : kRows) | speculated);
  }
  __device__ __forceinline__ void publish(int32_t content) {
    if (lane() == 0) {
      shared_.stages[published_.index].content = content;
      ptx::mbarrier_arrive(ptx::shared_address(shared_.full + published_.index));
    }
    published_.next();
    __syncwarp();
  }
  // Publishes whether the speculative entries hold.
  __device__ __forceinline__ void judge(bool holds) {
    if (lane() == 0) {
      shared_.speculation_holds = holds;
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.verdict));
    }
  }
  __device__ __forceinline__ void end() {
    const uint32_t full = ptx::shared_address(shared_.full + filled_.index);
    ptx::mbarrier_wait(ptx::shared_address(shared_.empty + filled_.index), filled_.parity ^ 1);
    if (lane() < kRows) ptx::mbarrier_arrive(full);
    ptx::mbarrier_arrive(full);
    publish(kEnd);
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % kWarpSize); }

  const CompressArgs& a_;
  Shared& shared_;
  PipelineState<kStages> filled_, published_;
  const uint64_t policy_ = ptx::evict_first_policy();  // half a row belongs to one window: look-ups should stay in L2
};

__device__ __forceinline__ void load_rows(const CompressArgs& a, Shared& shared, int64_t begin, int64_t end, const Quad& speculative) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  Loader loader(a, shared);
  LaneToken<ReadValue> tokens(a, begin + lane);
  const int32_t page_now = speculative.token >= 0 ? a.block_table[speculative.table_index] : 0;
  int speculated = 0;
  for (; speculated < kSpeculativeEntries && __shfl_sync(kAllLanes, speculative.token, speculated * kRows) >= 0; ++speculated) {
    loader.load(speculative, speculated);
    loader.publish(speculative, speculated, kSpeculative);
  }
  Quad next;
  int next_count = 0, next_loaded = 0;
  bool first_quad = true;
  const auto load_next = [&] {
    for (int i = next_loaded; i < next_count; ++i) {
      loader.load(next, i);
      loader.publish(next, i);
    }
  };
  for (int64_t first = begin;;) {
    for (unsigned found = tokens.found(end); found != 0;) {
      Quad quad;
      quad.find(a, tokens, found);
      const int count = min(__popc(found), kQuad);
      int loaded = 0;
      bool known = false;
      if (first_quad) {
        known = __all_sync(kAllLanes, quad.is(speculative) && (quad.token < 0 || page_now == speculative.page));
        if (known) {
          loaded = speculated;
          quad.page = page_now;
        }
        loader.judge(known);
        first_quad = false;
      }
      if (!known) quad.page = quad.token >= 0 ? a.block_table[quad.table_index] : 0;
      load_next();
      next = quad, next_count = count, next_loaded = loaded;
      for (int i = 0; i < count; ++i) found &= found - 1;
    }
    first += kWarpSize;
    if (first >= end) break;
    tokens = LaneToken<ReadValue>(a, first + lane);
  }
  load_next();
  if (first_quad) loader.judge(false);
  loader.end();
}

__device__ __forceinline__ void pool_rows(const CompressArgs& a, Shared& shared) {
  const int column = kChannels * static_cast<int>(threadIdx.x);
  Finish finisher;
  finisher.prepare_weight(a);
  for (PipelineState<kStages> stage_state;; stage_state.next()) {
    ptx::mbarrier_wait(ptx::shared_address(shared.full + stage_state.index), stage_state.parity);
    const Stage& stage = shared.stages[stage_state.index];
    const int32_t content = stage.content;
    if (content == kEnd) return;
    Vectors vectors;
    finisher.prepare_out(stage.angles, a.rotary, stage.out);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float2 value = *reinterpret_cast<const float2*>(stage.values[i] + 4 * column),
                   score = *reinterpret_cast<const float2*>(stage.scores[i] + 4 * column);
      vectors.value[i][0] = __float_as_uint(value.x), vectors.value[i][1] = __float_as_uint(value.y);
      vectors.score[i][0] = __float_as_uint(score.x), vectors.score[i][1] = __float_as_uint(score.y);
    }
    ptx::mbarrier_arrive(ptx::shared_address(shared.empty + stage_state.index));
    if ((content & ~kSpeculative) < kRows) vectors.drop(kRatio);  // there is no previous window
    float u[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const Pooled pooled = vectors.pool(j);
      u[j] = __fdividef(pooled.weighted, pooled.sum);
    }
    if ((content & kSpeculative) != 0) {
      ptx::mbarrier_wait(ptx::shared_address(&shared.verdict), 0);
      if (!shared.speculation_holds) continue;
    }
    finisher.store(a, u, shared.finish);
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    compress_4_stream_kernel(const __grid_constant__ CompressArgs a, int64_t block_tokens) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(shared.full + i), kFullArrivals);
      ptx::mbarrier_init(ptx::shared_address(shared.empty + i), kPoolThreads);
    }
    ptx::mbarrier_init(ptx::shared_address(&shared.verdict), 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const bool loads = threadIdx.x >= kPoolThreads;
  const int64_t begin = blockIdx.x * block_tokens, end = min(begin + block_tokens, a.num_tokens);
  Quad speculative;
  start_early([&] {
    if (loads) speculative = speculative_quad(a, begin, end);
  });
  if (loads) {
    load_rows(a, shared, begin, end, speculative);
  } else {
    pool_rows(a, shared);
  }
}

}  // namespace

void compress_4_stream(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  allow_shared_bytes(compress_4_stream_kernel, sizeof(Shared));
  const int64_t tokens = p.positions.shape[0];
  const int64_t block_tokens = ceil_div(tokens, int64_t{kBlocksPerSm} * capabilities(context.device).num_sms);
  const LaunchShape shape{.grid = static_cast<uint32_t>(ceil_div(tokens, block_tokens)), .block = kThreads, .shared_bytes = sizeof(Shared)};
  launch_early("compress_norm_rope_store", compress_4_stream_kernel, shape, context, compress_args(p), block_tokens);
}

}  // namespace strata::cuda
