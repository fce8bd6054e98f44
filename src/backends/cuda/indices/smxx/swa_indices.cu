// The sliding window of every token as slots: V4 12.2. Floor: 4 * window bytes written per token; the table entries come from L1.
#include "backends/cuda/indices/impls.h"
#include "backends/cuda/indices/smxx/index_rows.cuh"
#include "backends/cuda/runtime/check.h"

namespace strata::cuda {
namespace {

__global__ void swa_indices_kernel(int64_t num_tokens, const int64_t* __restrict__ positions, TokenPages tokens, Divisor page_size,
                                   int32_t window, int32_t* __restrict__ indices, int64_t row_stride, int32_t* __restrict__ lens) {
  const int64_t t = row_of_thread();
  if (t >= num_tokens) return;
  int32_t len = 0, first_row = 0;
  const int32_t* pages = tokens.pages(t);
  const int64_t position = positions[t];
  if (tokens.valid(t)) {
    const int64_t start = position < window ? 0 : position - window + 1;
    const int64_t first_block = start / page_size.value();
    pages += first_block;  // from the page of the oldest position on
    first_row = static_cast<int32_t>(start - first_block * page_size.value());
    len = static_cast<int32_t>(position + 1 - start);
  }
  int32_t* row = indices + t * row_stride;
  for_each_column(window, [&](int32_t column) {
    int32_t slot = -1;
    if (column < len) {
      const int32_t n = first_row + column, block = page_size.divide(n);
      slot = slot_on_page(__ldg(pages + block) - block, page_size.value(), n);
    }
    row[column] = slot;
  });
  if (threadIdx.x == 0) lens[t] = len;
}

void run(const SwaIndicesParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.positions.shape[0];
  if (num_tokens == 0) return;
  const RowLaunch launch = row_launch(num_tokens, p.window);
  swa_indices_kernel<<<launch.grid, launch.block, 0, native(context.stream)>>>(
      num_tokens, p.positions.ptr<int64_t>(), TokenPages(p.token_to_req, p.is_valid_token, p.block_table), Divisor(p.page_size), p.window,
      p.indices.ptr<int32_t>(), p.indices.stride[0], p.lens.ptr<int32_t>());
  check_launch("swa_indices");
}

}  // namespace

Implementation<SwaIndicesParams> swa_indices_smxx() { return smxx_implementation<SwaIndicesParams>({.run = run}); }

}  // namespace strata::cuda
