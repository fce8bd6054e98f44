// Schedules of dense_attn_decode: how its rows are shared out, where the host knows the lengths.
#pragma once

#include <span>

#include "strata/device.h"
#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// A call of dense_attn_decode as shapes and bounds tell of it.
struct ScheduledDenseCall {
  KvFormat format = KvFormat::bf16;  // of the cache
  int64_t row_dim = 0;
  int64_t num_heads = 0;
  int64_t num_requests = 0;
  int64_t max_query_len = 0;
  int64_t max_seq_len = 0;
};

namespace ops {

// Rows of DenseAttnDecodeParams::spans; and the most of calls with no more of anything. 0: the device's implementations pass schedules
// over.
int64_t dense_schedule_rows(const ScheduledDenseCall& call, const Device& device);
int64_t most_dense_schedule_rows(const ScheduledDenseCall& call, const Device& device);

// Writes a schedule to host memory, i32 [S, 8]; S as dense_schedule_rows() says, more than 0. query_start_loc: one more than lengths.
void make_dense_schedule(std::span<const int32_t> query_start_loc, std::span<const int32_t> seq_lens, const Device& device,
                         const TensorView& spans);

}  // namespace ops
}  // namespace strata
