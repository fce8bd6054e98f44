// Shared by the kernels that write rows of i32 indices: a group of whole warps per row, with lanes on neighbouring columns, so that any row
// stride and alignment gives full 128-byte accesses except at the ends.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/runtime/cuda_device.h"
#include "strata/op.h"
#include "strata/tensor.h"

namespace strata::cuda {

// Columns that a thread has in flight.
inline constexpr int kColumnsPerThread = 8;

struct RowLaunch {
  dim3 grid, block;  // block.x threads work on one row, block.y rows are in a block
};

inline RowLaunch row_launch(int64_t num_rows, int64_t width, int columns = kColumnsPerThread, int64_t max_row_threads = 256) {
  constexpr int64_t kBlockThreads = 128;
  const int64_t needed_threads = (width + columns - 1) / columns;
  const int64_t row_threads = std::clamp<int64_t>((needed_threads + 31) / 32 * 32, 32, max_row_threads);
  const int64_t rows = std::max<int64_t>(kBlockThreads / row_threads, 1);
  return {.grid = dim3(static_cast<uint32_t>((num_rows + rows - 1) / rows)),
          .block = dim3(static_cast<uint32_t>(row_threads), static_cast<uint32_t>(rows))};
}

__device__ inline int64_t row_of_thread() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }

// With few rows each thread has one run, with many two: each column waits for one or two reads, which other rows hide.
inline bool few_rows(int64_t num_rows, const ExecutionContext& context) {
  return num_rows <= int64_t{2} * capabilities(context.device).num_sms;
}

constexpr int kRun = 4;  // neighbouring columns that a thread moves together

// Rows whose first `width` columns are whole 16-byte aligned runs.
inline bool whole_runs(const TensorView& rows, int64_t width) { return width % kRun == 0 && rows_aligned(rows); }

// kWide: whole runs. Columns from `width` on load -1, and are not stored.
template <bool kWide>
__device__ __forceinline__ void load_run(const int32_t* row, int32_t column, int32_t width, int32_t (&entry)[kRun]) {
  if constexpr (kWide) {
    const int4 v = column < width ? *reinterpret_cast<const int4*>(row + column) : make_int4(-1, -1, -1, -1);
    entry[0] = v.x, entry[1] = v.y, entry[2] = v.z, entry[3] = v.w;
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) entry[i] = column + i < width ? row[column + i] : -1;
  }
}
template <bool kWide>
__device__ __forceinline__ void store_run(int32_t* row, int32_t column, int32_t width, const int32_t (&entry)[kRun]) {
  if constexpr (kWide) {
    if (column < width) *reinterpret_cast<int4*>(row + column) = make_int4(entry[0], entry[1], entry[2], entry[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (column + i < width) row[column + i] = entry[i];
    }
  }
}

// Calls body(column) for this thread's columns of the row.
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
  // To be called before valid(t) is tested, so that both loads are in flight together; dereferenced only afterwards.
  __device__ const int32_t* pages(int64_t t) const {
    return block_table == nullptr ? nullptr : block_table + token_to_req[t] * table_stride;
  }
};

// Slots are i32: intermediate results may wrap, and their low 32 bits are the slot.
__device__ inline int32_t slot_on_page(int32_t page, int32_t page_size, int32_t row) {
  return static_cast<int32_t>(static_cast<uint32_t>(page) * static_cast<uint32_t>(page_size) + static_cast<uint32_t>(row));
}

}  // namespace strata::cuda
