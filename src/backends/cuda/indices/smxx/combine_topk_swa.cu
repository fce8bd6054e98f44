// Rows of the gathered workspace for one prefill chunk: V4 13. Floor: 4 * (top_k + width) bytes per token. 4096 tokens with top_k 2048 on
// an H200: 18.5 us of 16.1.
#include <limits>

#include "backends/cuda/indices/impls.h"
#include "backends/cuda/indices/smxx/index_rows.cuh"
#include "backends/cuda/runtime/early_launch.cuh"

namespace strata::cuda {
namespace {

constexpr int kMaxRowThreads = 1024;

// The request that token t of the chunk belongs to. The warp counts the requests that end at or before t, 32 at a time: independent loads,
// where a binary search would wait for each.
__device__ int32_t request_of_token(const int32_t* query_start_loc, int32_t num_requests, int32_t t) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), target = query_start_loc[0] + t;
  int32_t request = 0;
  while (request < num_requests) {
    const int32_t candidate = request + lane;
    const int ended = __popc(__ballot_sync(0xFFFFFFFFu, candidate < num_requests && query_start_loc[candidate + 1] <= target));
    request += ended;
    if (ended < 32) break;
  }
  return request;
}

struct Call {
  int32_t num_tokens;
  const int32_t* topk_indices;
  int64_t topk_stride;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  const int32_t* gather_lens;
  int32_t num_requests, window;
  Divisor ratio;
  int32_t top_k;
  int64_t m, n;
  int32_t* combined;
  int64_t combined_stride;
  int32_t width;
  int32_t* combined_lens;
};

template <int kRuns, bool kWide>
__global__ void __launch_bounds__(kMaxRowThreads) combine_topk_swa_kernel(const __grid_constant__ Call c) {
  start_early();
  const int64_t thread_row = row_of_thread();
  if (thread_row >= c.num_tokens) return;
  const int32_t t = static_cast<int32_t>(thread_row);
  const int32_t* const topk = c.topk_indices + t * c.topk_stride;
  int32_t* const row = c.combined + t * c.combined_stride;
  const int32_t step = static_cast<int32_t>(blockDim.x) * kRun;
  int32_t column = static_cast<int32_t>(threadIdx.x) * kRun;
  // The first columns of the selection load while the request is searched, also those that turn out not to be needed.
  int32_t entry[kRuns][kRun];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) load_run<kWide>(topk, column + r * step, c.top_k, entry[r]);
  const int32_t request = request_of_token(c.query_start_loc, c.num_requests, t);
  const int32_t seq_len = c.seq_lens[request];
  const int32_t position = seq_len - (c.query_start_loc[request + 1] - c.query_start_loc[0]) + t;
  const int32_t num_topk = min(c.ratio.divide(position + 1), c.top_k);
  const int32_t num_window = min(position + 1, c.window);
  // The chunk's workspace rows fit an i32; the offset of column `num_topk` does so too, that of column 0 may not: wrap.
  const uint32_t request_row = static_cast<uint32_t>(request * c.m);
  const uint32_t gather_start = static_cast<uint32_t>(seq_len - c.gather_lens[request]);
  const uint32_t window_row = request_row + static_cast<uint32_t>(c.n) + static_cast<uint32_t>(position - num_window + 1) - gather_start -
                              static_cast<uint32_t>(num_topk);
  if (threadIdx.x == 0) c.combined_lens[t] = num_topk + num_window;
  while (true) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const int32_t at = column + r * step + i;
        const uint32_t index = at < num_topk ? static_cast<uint32_t>(entry[r][i]) + request_row : window_row + static_cast<uint32_t>(at);
        entry[r][i] = at < num_topk + num_window ? static_cast<int32_t>(index) : -1;
      }
      store_run<kWide>(row, column + r * step, c.width, entry[r]);
    }
    column += kRuns * step;
    if (column >= c.width) return;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) load_run<kWide>(topk, column + r * step, num_topk, entry[r]);
  }
}

void run(const CombineTopkSwaParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.combined_indices.shape[0], width = p.combined_indices.shape[1];
  if (num_tokens == 0) return;
  const bool few = few_rows(num_tokens, context), wide = whole_runs(p.topk_indices, p.top_k) && whole_runs(p.combined_indices, width);
  const RowLaunch launch = row_launch(num_tokens, width, few ? kRun : 2 * kRun, few ? kMaxRowThreads : kMaxRowThreads / 4);
  const Call c{.num_tokens = static_cast<int32_t>(num_tokens),
               .topk_indices = p.topk_indices.ptr<int32_t>(),
               .topk_stride = p.topk_indices.stride[0],
               .query_start_loc = p.query_start_loc.ptr<int32_t>(),
               .seq_lens = p.seq_lens.ptr<int32_t>(),
               .gather_lens = p.gather_lens.ptr<int32_t>(),
               .num_requests = static_cast<int32_t>(p.seq_lens.shape[0]),
               .window = p.window,
               .ratio = Divisor(p.ratio),
               .top_k = p.top_k,
               .m = p.m,
               .n = p.n,
               .combined = p.combined_indices.ptr<int32_t>(),
               .combined_stride = p.combined_indices.stride[0],
               .width = static_cast<int32_t>(width),
               .combined_lens = p.combined_lens.ptr<int32_t>()};
  const auto kernel = few ? (wide ? combine_topk_swa_kernel<1, true> : combine_topk_swa_kernel<1, false>)
                          : (wide ? combine_topk_swa_kernel<2, true> : combine_topk_swa_kernel<2, false>);
  launch_early("combine_topk_swa", kernel, {launch.grid, launch.block}, context, c);
}

Support supports(const CombineTopkSwaParams& p, const Capabilities&) {
  return p.combined_indices.shape[1] < (int64_t{1} << 30) ? Support::yes() : Support::no("needs fewer than 2^30 columns");
}

}  // namespace

Implementation<CombineTopkSwaParams> combine_topk_swa_smxx() {
  return smxx_implementation<CombineTopkSwaParams>({.supports = supports, .run = run});
}

}  // namespace strata::cuda
