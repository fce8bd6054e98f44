// Schedules of dense_attn_decode (schedule_planner.h).
#pragma once

#include <span>

#include "contracts/schedule_planner.h"
#include "strata/kv_format.h"

namespace strata {

// A call of dense_attn_decode as described by shapes and bounds.
struct ScheduledDenseCall {
  KvFormat format = KvFormat::bf16;  // of the cache
  int64_t row_dim = 0;
  int64_t num_heads = 0;
  int64_t num_requests = 0;
  int64_t max_query_len = 0;
  int64_t max_seq_len = 0;
};

namespace ops {

struct RequestLengths {
  std::span<const int32_t> query_start_loc;  // one more than lengths
  std::span<const int32_t> seq_lens;
};

using DenseDecodePlanner = SchedulePlanner<ScheduledDenseCall, RequestLengths>;

}  // namespace ops
}  // namespace strata
