// Schedules of sparse_attn_decode (schedule_planner.h).
#pragma once

#include <span>

#include "contracts/schedule_planner.h"
#include "strata/kv_format.h"

namespace strata {

// A call of sparse_attn_decode as described by shapes.
struct ScheduledCall {
  KvFormat format = KvFormat::bf16;  // of the caches
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t width = 0;  // entries of both scopes' indices
};

// A token's entries inside the lengths: of the first scope, of both.
struct AttendedRows {
  int32_t main = 0;
  int32_t all = 0;
};

namespace ops {

// When a schedule is made. faster: if the call takes less time with it. far_bound: if that is expected of calls whose tokens may have any
// number of rows up to the width, such as a captured step's; so for all such calls or for none.
enum class ScheduleWhen : uint8_t { faster, far_bound, always };

struct TokenLengths {
  std::span<const AttendedRows> rows;  // of call.num_tokens tokens
  ScheduleWhen when = ScheduleWhen::faster;
};

using SparseDecodePlanner = SchedulePlanner<ScheduledCall, TokenLengths>;

}  // namespace ops
}  // namespace strata
