// Rows of the gathered workspace for one prefill chunk: V4 13. Floor: 4 * (top_k + width) bytes per token. 4096 tokens with top_k 2048 on
// an H200: 20.7 us of 16.1.
#include <limits>

#include "backends/cuda/common/check.h"
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/smxx/indices/index_rows.cuh"

namespace strata::cuda {
namespace {

// The request that token t of the chunk belongs to. The warp counts the requests that end at or before t, 32 at a time: loads that do not
// wait for one another, where a binary search would wait for each.
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

__global__ void combine_topk_swa_kernel(int32_t num_tokens, const int32_t* __restrict__ topk_indices, int64_t topk_stride,
                                        const int32_t* __restrict__ query_start_loc, const int32_t* __restrict__ seq_lens,
                                        const int32_t* __restrict__ gather_lens, int32_t num_requests, int32_t window, Divisor ratio,
                                        int32_t top_k, int64_t m, int64_t n, int32_t* __restrict__ combined, int64_t combined_stride,
                                        int32_t width, int32_t* __restrict__ combined_lens) {
  const int64_t thread_row = row_of_thread();
  if (thread_row >= num_tokens) return;
  const int32_t t = static_cast<int32_t>(thread_row);
  const int32_t* topk = topk_indices + t * topk_stride;
  int32_t* row = combined + t * combined_stride;
  const int32_t step = static_cast<int32_t>(blockDim.x);
  // The first columns of the selection come while the request is looked for, those that turn out not to be needed too.
  int32_t first[kColumnsPerThread];
#pragma unroll
  for (int i = 0; i < kColumnsPerThread; ++i) {
    const int32_t column = static_cast<int32_t>(threadIdx.x) + i * step;
    first[i] = column < top_k ? topk[column] : 0;
  }
  const int32_t request = request_of_token(query_start_loc, num_requests, t);
  const int32_t seq_len = seq_lens[request];
  const int32_t position = seq_len - (query_start_loc[request + 1] - query_start_loc[0]) + t;
  const int32_t num_topk = min(ratio.divide(position + 1), top_k);
  const int32_t num_window = min(position + 1, window);
  // The chunk's workspace rows fit an i32; the offset of column `num_topk` does so too, that of column 0 may not: wrap.
  const uint32_t request_row = static_cast<uint32_t>(request * m);
  const uint32_t gather_start = static_cast<uint32_t>(seq_len - gather_lens[request]);
  const uint32_t window_row = request_row + static_cast<uint32_t>(n) + static_cast<uint32_t>(position - num_window + 1) - gather_start -
                              static_cast<uint32_t>(num_topk);
  const auto index_of = [&](int32_t column, int32_t entry) {
    if (column < num_topk) return static_cast<int32_t>(static_cast<uint32_t>(entry) + request_row);
    return column < num_topk + num_window ? static_cast<int32_t>(window_row + static_cast<uint32_t>(column)) : -1;
  };
#pragma unroll
  for (int i = 0; i < kColumnsPerThread; ++i) {
    const int32_t column = static_cast<int32_t>(threadIdx.x) + i * step;
    if (column < width) row[column] = index_of(column, first[i]);
  }
  for (int32_t column = static_cast<int32_t>(threadIdx.x) + kColumnsPerThread * step; column < width; column += step) {
    row[column] = index_of(column, column < num_topk ? topk[column] : 0);
  }
  if (threadIdx.x == 0) combined_lens[t] = num_topk + num_window;
}

void run(const CombineTopkSwaParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.combined_indices.shape[0];
  if (num_tokens == 0) return;
  const RowLaunch launch = row_launch(num_tokens, p.combined_indices.shape[1]);
  combine_topk_swa_kernel<<<launch.grid, launch.block, 0, native(context.stream)>>>(
      static_cast<int32_t>(num_tokens), p.topk_indices.ptr<int32_t>(), p.topk_indices.stride[0], p.query_start_loc.ptr<int32_t>(),
      p.seq_lens.ptr<int32_t>(), p.gather_lens.ptr<int32_t>(), static_cast<int32_t>(p.seq_lens.shape[0]), p.window, Divisor(p.ratio),
      p.top_k, p.m, p.n, p.combined_indices.ptr<int32_t>(), p.combined_indices.stride[0], static_cast<int32_t>(p.combined_indices.shape[1]),
      p.combined_lens.ptr<int32_t>());
  check_launch("combine_topk_swa");
}

Support supports(const CombineTopkSwaParams& p, const Capabilities&) {
  return p.combined_indices.shape[1] < (int64_t{1} << 30) ? Support::yes() : Support::no("needs fewer than 2^30 columns");
}

}  // namespace

std::vector<Implementation<CombineTopkSwaParams>> combine_topk_swa() {
  return smxx_implementation<CombineTopkSwaParams>({.supports = supports, .run = run});
}

}  // namespace strata::cuda
