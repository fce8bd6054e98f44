// Converts entry numbers of a selection to slots: V4 12.3. Floor: 8 * k bytes per token, read and written once: 15.6 us for 4096 tokens and
// k 2048 on an H200. Reached: 19.0 us.
#include <limits>

#include "backends/cuda/device/touch.cuh"
#include "backends/cuda/indices/impls.h"
#include "backends/cuda/indices/smxx/index_rows.cuh"
#include "backends/cuda/runtime/early_launch.cuh"

namespace strata::cuda {
namespace {

constexpr int kMaxRowThreads = 512;

struct Call {
  int64_t num_tokens;
  const int32_t* topk_indices;  // may be global_indices
  int64_t topk_stride;
  int32_t k;
  TokenPages tokens;
  int32_t requests, max_blocks;
  Divisor page_size;
  int32_t* global_indices;
  int64_t global_stride;
  int32_t* lens;
};

// Touches the pages of the token's request, in which its entries are looked up.
__device__ __forceinline__ void touch_pages(const Call& c, int64_t t) {
  constexpr int32_t kLine = 32;
  if (t >= c.num_tokens) return;
  const int32_t request = speculative_load(c.tokens.token_to_req + t), block = static_cast<int32_t>(threadIdx.x) * kLine;
  if (request >= 0 && request < c.requests && block < c.max_blocks) touch(c.tokens.block_table + request * c.tokens.table_stride + block);
}

// The rows may be converted in place. So a thread reads all its columns in flight before it writes the first of them, and no load of them
// uses the read-only path.
template <int kRuns, bool kWide>
__global__ void __launch_bounds__(kMaxRowThreads) compute_global_topk_kernel(const __grid_constant__ Call c) {
  __shared__ int32_t warp_counts[kMaxRowThreads / 32];
  const int64_t t = row_of_thread();
  start_early([&] {
    if constexpr (kRuns == 1) touch_pages(c, t);  // with many tokens other rows hide these latencies
  });
  int32_t count = 0;
  if (t < c.num_tokens) {
    const int32_t* const local = c.topk_indices + t * c.topk_stride;
    int32_t* const global = c.global_indices + t * c.global_stride;
    const int32_t step = static_cast<int32_t>(blockDim.x) * kRun;
    for (int32_t begin = static_cast<int32_t>(threadIdx.x) * kRun; begin < c.k; begin += kRuns * step) {
      int32_t entry[kRuns][kRun];
#pragma unroll
      for (int r = 0; r < kRuns; ++r) load_run<kWide>(local, begin + r * step, c.k, entry[r]);
      // After the loads, which do not wait for the request to be known. Every column of a valid token reads a page; columns without an
      // entry read the first or the last: loads without conditions are all in flight at once.
      const int32_t* pages = c.tokens.pages(t);
      const bool valid = c.tokens.valid(t);
      if (!valid) pages = c.tokens.block_table;
      int32_t page[kRuns][kRun] = {};
      if (c.max_blocks > 0) {
#pragma unroll
        for (int i = 0; i < kRuns * kRun; ++i) {
          const int32_t block = c.page_size.divide(max(entry[i / kRun][i % kRun], 0));
          page[i / kRun][i % kRun] = __ldg(pages + min(block, c.max_blocks - 1));
        }
      }
#pragma unroll
      for (int i = 0; i < kRuns * kRun; ++i) {
        int32_t& e = entry[i / kRun][i % kRun];
        const bool selected = valid && e >= 0;
        const int32_t block = c.page_size.divide(max(e, 0));
        count += selected ? 1 : 0;
        e = selected && block < c.max_blocks ? slot_on_page(page[i / kRun][i % kRun] - block, c.page_size.value(), e) : -1;
      }
#pragma unroll
      for (int r = 0; r < kRuns; ++r) store_run<kWide>(global, begin + r * step, c.k, entry[r]);
    }
  }
  // The warps of one row are neighbours.
  count = __reduce_add_sync(0xFFFFFFFFu, count);
  const uint32_t row_warps = blockDim.x / 32, warp = threadIdx.y * row_warps + threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) warp_counts[warp] = count;
  __syncthreads();
  if (threadIdx.x != 0 || t >= c.num_tokens) return;
  int32_t total = 0;
  for (uint32_t i = 0; i < row_warps; ++i) total += warp_counts[warp + i];
  c.lens[t] = total;
}

void run(const ComputeGlobalTopkParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.topk_indices.shape[0], k = p.topk_indices.shape[1];
  if (num_tokens == 0) return;
  // Each entry waits for two dependent reads. With few tokens each thread has one run; with many it has two in flight.
  const bool few = few_rows(num_tokens, context), wide = whole_runs(p.topk_indices, k) && whole_runs(p.global_indices, k);
  const RowLaunch launch = row_launch(num_tokens, k, few ? kRun : 2 * kRun, few ? kMaxRowThreads : kMaxRowThreads / 2);
  // A table without rows, where no token is valid, has no page either.
  const int64_t max_blocks =
      p.block_table.shape[0] > 0 ? std::min<int64_t>(p.block_table.shape[1], std::numeric_limits<int32_t>::max()) : 0;
  const Call c{.num_tokens = num_tokens,
               .topk_indices = p.topk_indices.ptr<int32_t>(),
               .topk_stride = p.topk_indices.stride[0],
               .k = static_cast<int32_t>(k),
               .tokens = TokenPages(p.token_to_req, p.is_valid_token, p.block_table),
               .requests = static_cast<int32_t>(p.block_table.shape[0]),
               .max_blocks = static_cast<int32_t>(max_blocks),
               .page_size = Divisor(p.page_size),
               .global_indices = p.global_indices.ptr<int32_t>(),
               .global_stride = p.global_indices.stride[0],
               .lens = p.lens.ptr<int32_t>()};
  const auto kernel = few ? (wide ? compute_global_topk_kernel<1, true> : compute_global_topk_kernel<1, false>)
                          : (wide ? compute_global_topk_kernel<2, true> : compute_global_topk_kernel<2, false>);
  launch_early("compute_global_topk", kernel, {launch.grid, launch.block}, context, c);
}

Support supports(const ComputeGlobalTopkParams& p, const Capabilities&) {
  return p.topk_indices.shape[1] < (int64_t{1} << 30) ? Support::yes() : Support::no("needs fewer than 2^30 columns");
}

}  // namespace

Implementation<ComputeGlobalTopkParams> compute_global_topk_smxx() {
  return smxx_implementation<ComputeGlobalTopkParams>({.supports = supports, .run = run});
}

}  // namespace strata::cuda
