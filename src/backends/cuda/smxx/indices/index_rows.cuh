// What the kernels that write rows of i32 indices have in common: a group of whole warps per row, lanes on neighbouring columns, so that
// any row stride and alignment gives full 128-byte accesses but for the ends.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/common/divisor.h"
#include "strata/tensor.h"

namespace strata::cuda {

// Columns that a thread has in flight.
inline constexpr int kColumnsPerThread = 8;

struct RowLaunch {
  dim3 grid, block;  // block.x threads work on one row, block.y rows are in a block
};

inline RowLaunch row_launch(int64_t num_rows, int64_t width, int columns = kColumnsPerThread) {
  constexpr int64_t kMaxRowThreads = 256, kBlockThreads = 128;
  const int64_t wanted = (width + columns - 1) / columns;
  const int64_t row_threads = std::clamp<int64_t>((wanted + 31) / 32 * 32, 32, kMaxRowThreads);
  const int64_t rows = std::max<int64_t>(kBlockThreads / row_threads, 1);
  return {.grid = dim3(static_cast<uint32_t>((num_rows + rows - 1) / rows)),
          .block = dim3(static_cast<uint32_t>(row_threads), static_cast<uint32_t>(rows))};
}

__device__ inline int64_t row_of_thread() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }

// Calls body(column) for the columns of this thread's row.
template <class Body>
__device__ void for_each_column(int32_t width, const Body& body) {
#pragma unroll kColumnsPerThread
  for (int32_t column = static_cast<int32_t>(threadIdx.x); column < width; column += static_cast<int32_t>(blockDim.x)) body(column);
}

// Request of every token and its pages. Tokens that are not valid may have any request number.
struct TokenPages {
  const int32_t* token_to_req;
  const uint8_t* is_valid_token;  // null: all valid
  const int32_t* block_table;     // null: none
  int64_t table_stride;

  TokenPages(const TensorView& requests, const TensorView& validity, const TensorView& table)
      : token_to_req(requests.ptr<int32_t>()),
        is_valid_token(validity.present() ? validity.ptr<uint8_t>() : nullptr),
        block_table(table.present() ? table.ptr<int32_t>() : nullptr),
        table_stride(table.stride[0]) {}

  __device__ bool valid(int64_t t) const { return is_valid_token == nullptr || is_valid_token[t] != 0; }
  // To be called before valid(t) is looked at, so that the two loads are under way together, and followed only after.
  __device__ const int32_t* pages(int64_t t) const {
    return block_table == nullptr ? nullptr : block_table + token_to_req[t] * table_stride;
  }
};

// Slots are i32: the arithmetic may wrap on the way, its low 32 bits are the slot.
__device__ inline int32_t slot_on_page(int32_t page, int32_t page_size, int32_t row) {
  return static_cast<int32_t>(static_cast<uint32_t>(page) * static_cast<uint32_t>(page_size) + static_cast<uint32_t>(row));
}

}  // namespace strata::cuda
