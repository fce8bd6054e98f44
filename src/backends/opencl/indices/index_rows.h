// Shared by the launchers of kernels that write rows of indices.
#pragma once

#include <algorithm>
#include <limits>

#include "backends/opencl/indices/call.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::opencl {

// Whether the first `width` columns of every row are whole runs at multiples of 16 bytes.
inline bool has_whole_runs(const TensorView& rows, int64_t width) { return width % kIndexRun == 0 && rows_begin_at(rows, 16); }

inline Support supports_width(const TensorView& rows) {
  return rows.shape[1] < (int64_t{1} << 30) ? Support::yes() : Support::no("needs fewer than 2^30 columns");
}

inline IndexRows index_rows(const TensorView& rows, const TensorView& lens, bool is_wide) {
  constexpr int kMinLog2 = 3, kMaxLog2 = 8;  // log2 of the items per row
  static_assert(1 << kMaxLog2 == kIndexItems);
  int log2_row_items = kMinLog2;
  while (log2_row_items < kMaxLog2 && int64_t{2 * kIndexRun} << log2_row_items < rows.shape[1]) ++log2_row_items;
  return {.data = address(rows),
          .lens = address(lens),
          .stride = rows.stride[0],
          .count = rows.shape[0],
          .width = static_cast<int32_t>(rows.shape[1]),
          .log2_row_items = log2_row_items,
          .is_wide = is_wide && has_whole_runs(rows, rows.shape[1])};
}

inline TokenPages token_pages(const TensorView& requests, const TensorView& validity, const TensorView& table) {
  return {.token_to_req = address(requests),
          .is_valid_token = address(validity),
          .block_table = table.present() ? address(table) : 0,
          .table_stride = table.stride[0]};
}

inline Range range_of(const IndexRows& rows) {
  return {.groups = {static_cast<size_t>(ceil_div(rows.count, int64_t{kIndexItems} >> rows.log2_row_items)), 1, 1},
          .items = {kIndexItems, 1, 1}};
}

}  // namespace strata::opencl
