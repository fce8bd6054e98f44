// Entry numbers of a selection to slots: V4 12.3. Floor: 8 * k bytes per token, read and written once.
#include <limits>

#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/smxx/indices/index_rows.cuh"

namespace strata::cuda {
namespace {

constexpr int kMaxWarps = 8;
// Of a thread in flight: each depends on the one in front of it, and threads hide that better than columns.
constexpr int kColumns = 4;

// The rows may be converted in place, so a thread reads all the columns it has in flight before it writes the first of them; no load goes
// through the read-only path.
__global__ void __launch_bounds__(256, 6)
    compute_global_topk_kernel(int64_t num_tokens, const int32_t* topk_indices, int64_t topk_stride, int32_t k, TokenPages tokens,
                               int32_t max_blocks, Divisor page_size, int32_t* global_indices, int64_t global_stride,
                               int32_t* __restrict__ lens) {
  __shared__ int32_t warp_counts[kMaxWarps];
  start_early();
  const int64_t t = row_of_thread();
  int32_t count = 0;
  if (t < num_tokens) {
    const int32_t* local = topk_indices + t * topk_stride;
    int32_t* global = global_indices + t * global_stride;
    const int32_t step = static_cast<int32_t>(blockDim.x);
    for (int32_t begin = static_cast<int32_t>(threadIdx.x); begin < k; begin += kColumns * step) {
      int32_t entry[kColumns];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int32_t column = begin + i * step;
        entry[i] = column < k ? local[column] : -1;
      }
      // Behind the loads, which do not wait for the request to be known. Every column of a valid token reads a page, what is no entry the
      // first or the last: loads without conditions are all under way at once.
      const int32_t* pages = tokens.pages(t);
      const bool valid = tokens.valid(t);
      if (!valid) pages = tokens.block_table;
      int32_t page[kColumns] = {};
      if (max_blocks > 0) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) page[i] = __ldg(pages + min(page_size.divide(max(entry[i], 0)), max_blocks - 1));
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const bool selected = valid && entry[i] >= 0;
        const int32_t block = page_size.divide(max(entry[i], 0));
        count += selected ? 1 : 0;
        entry[i] = selected && block < max_blocks ? slot_on_page(page[i] - block, page_size.value(), entry[i]) : -1;
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int32_t column = begin + i * step;
        if (column < k) global[column] = entry[i];
      }
    }
  }
  // The warps of one row are neighbours.
  count = __reduce_add_sync(0xFFFFFFFFu, count);
  const uint32_t row_warps = blockDim.x / 32, warp = threadIdx.y * row_warps + threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) warp_counts[warp] = count;
  __syncthreads();
  if (threadIdx.x != 0 || t >= num_tokens) return;
  int32_t total = 0;
  for (uint32_t i = 0; i < row_warps; ++i) total += warp_counts[warp + i];
  lens[t] = total;
}

void run(const ComputeGlobalTopkParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.topk_indices.shape[0];
  if (num_tokens == 0) return;
  const RowLaunch launch = row_launch(num_tokens, p.topk_indices.shape[1], kColumns);
  // A table without rows, where no token is valid, has no block either.
  const int64_t max_blocks =
      p.block_table.shape[0] > 0 ? std::min<int64_t>(p.block_table.shape[1], std::numeric_limits<int32_t>::max()) : 0;
  launch_early("compute_global_topk", compute_global_topk_kernel, {launch.grid, launch.block}, context, num_tokens,
               p.topk_indices.ptr<int32_t>(), p.topk_indices.stride[0], static_cast<int32_t>(p.topk_indices.shape[1]),
               TokenPages(p.token_to_req, p.is_valid_token, p.block_table), static_cast<int32_t>(max_blocks), Divisor(p.page_size),
               p.global_indices.ptr<int32_t>(), p.global_indices.stride[0], p.lens.ptr<int32_t>());
}

Support supports(const ComputeGlobalTopkParams& p, const Capabilities&) {
  return p.topk_indices.shape[1] < (int64_t{1} << 30) ? Support::yes() : Support::no("needs fewer than 2^30 columns");
}

}  // namespace

std::vector<Implementation<ComputeGlobalTopkParams>> compute_global_topk() {
  return smxx_implementation<ComputeGlobalTopkParams>({.supports = supports, .run = run});
}

}  // namespace strata::cuda
