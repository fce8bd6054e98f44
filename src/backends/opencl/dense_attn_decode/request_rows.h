// The rows of a request in a paged cache.
#pragma once

#include "backends/opencl/attention/bf16_rows.h"
#include "backends/opencl/attention/call.h"

namespace strata::opencl {

// The first `visible` rows of a request.
struct RequestRows {
  const CacheView& cache;
  const __global int32_t* table;
  int visible;

  int count() const { return visible; }
  int index(int entry) const { return entry < visible ? table[(uint32_t)entry / (uint32_t)cache.page_size] : -1; }
  RowAddress address(int entry, int page) const { return row_address(cache, page, (uint32_t)entry % (uint32_t)cache.page_size); }
};

// The request of a token: the last that begins at or before it. Requests without queries are skipped, as they begin where the next does.
inline int request_of(const __global int32_t* start, int num_requests, int64_t token) {
  int low = 0, high = num_requests - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if ((int64_t)start[middle] - start[0] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}
inline RequestRows rows_of(const DenseAttnDecodeCall& call, int64_t token) {
  const __global int32_t* start = at<const int32_t>(call.query_start);
  const int request = request_of(start, call.num_requests, token);
  // The last query sees all rows. If the call is causal, each earlier query sees one row fewer.
  const int64_t after = call.is_causal != 0 ? (int64_t)start[request + 1] - start[0] - 1 - token : 0;
  const int visible = (int)max((int64_t)0, at<const int32_t>(call.seq_lens)[request] - after);
  return {call.cache, at<const int32_t>(call.block_table) + request * call.table_stride, visible};
}

}  // namespace strata::opencl
