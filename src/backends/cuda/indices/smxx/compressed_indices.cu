// Every complete compressed entry of every token: V4 12.4 and 12.5. Floor: 4 * width bytes written per token.
#include <limits>

#include "backends/cuda/indices/impls.h"
#include "backends/cuda/indices/smxx/index_rows.cuh"
#include "backends/cuda/runtime/check.h"

namespace strata::cuda {
namespace {

// Without a block table entry numbers are written, with one slots.
__global__ void compressed_indices_kernel(int64_t num_tokens, const int64_t* __restrict__ positions, TokenPages tokens, Divisor page_size,
                                          int32_t ratio, int32_t width, int32_t* __restrict__ indices, int64_t row_stride,
                                          int32_t* __restrict__ lens) {
  const int64_t t = row_of_thread();
  if (t >= num_tokens) return;
  int32_t len = 0;
  const int32_t* const pages = tokens.pages(t);  // of a token without entries they may not exist
  const int64_t position = positions[t];
  if (tokens.valid(t)) {
    const int64_t entries = (position + 1) / ratio;
    len = entries < width ? static_cast<int32_t>(entries) : width;
  }
  int32_t* row = indices + t * row_stride;
  for_each_column(width, [&](int32_t column) {
    int32_t index = -1;
    if (column < len) {
      index = column;
      if (pages != nullptr) {
        const int32_t block = page_size.divide(column);
        index = slot_on_page(__ldg(pages + block) - block, page_size.value(), column);
      }
    }
    row[column] = index;
  });
  if (threadIdx.x == 0) lens[t] = len;
}

void run(const CompressedIndicesParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.positions.shape[0];
  if (num_tokens == 0) return;
  const RowLaunch launch = row_launch(num_tokens, p.indices.shape[1]);
  const int32_t page_size = p.block_table.present() ? p.page_size : 1;
  compressed_indices_kernel<<<launch.grid, launch.block, 0, native(context.stream)>>>(
      num_tokens, p.positions.ptr<int64_t>(), TokenPages(p.token_to_req, p.is_valid_token, p.block_table), Divisor(page_size), p.ratio,
      static_cast<int32_t>(p.indices.shape[1]), p.indices.ptr<int32_t>(), p.indices.stride[0], p.lens.ptr<int32_t>());
  check_launch("compressed_indices");
}

Support supports(const CompressedIndicesParams& p, const Capabilities&) {
  return p.indices.shape[1] <= std::numeric_limits<int32_t>::max() ? Support::yes() : Support::no("needs fewer than 2^31 columns");
}

}  // namespace

Implementation<CompressedIndicesParams> compressed_indices_smxx() {
  return smxx_implementation<CompressedIndicesParams>({.supports = supports, .run = run});
}

}  // namespace strata::cuda
