// Schedules of sparse_attn_decode (schedule_planner.h).
#pragma once

#include <span>

#include "contracts/schedule_planner.h"
#include "strata/kv_format.h"

namespace strata {

// A call of sparse_attn_decode as shapes tell of it.
struct ScheduledCall {
  KvFormat format = KvFormat::bf16;  // of the caches
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t width = 0;  // entries of both scopes' indices
};

// The entries of a token that are looked at: of the first scope, of both.
struct AttendedRows {
  int32_t main = 0;
  int32_t all = 0;
};

namespace ops {

// When a schedule is made: where the call has less to do with it; where that is to be expected of calls whose tokens may have any rows up
// to the width, as those of a captured step: so for all such calls, or none.
enum class ScheduleWhen : uint8_t { faster, far_bound, always };

struct TokenLengths {
  std::span<const AttendedRows> rows;  // of call.num_tokens tokens
  ScheduleWhen when = ScheduleWhen::faster;
};

using SparseDecodePlanner = SchedulePlanner<ScheduledCall, TokenLengths>;

}  // namespace ops
}  // namespace strata
