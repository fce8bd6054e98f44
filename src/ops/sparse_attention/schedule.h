// Schedules of sparse_attn_decode: how its rows are shared out, where the host knows the lengths.
#pragma once

#include <optional>
#include <span>

#include "strata/device.h"
#include "strata/kv_format.h"
#include "strata/tensor.h"

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

// Rows of SparseAttnDecodeParams::pieces and merges; and the most of calls with no more tokens. No pieces: the device's implementations
// pass schedules over.
struct ScheduleRows {
  int64_t pieces = 0;
  int64_t merges = 0;
};
ScheduleRows schedule_rows(const ScheduledCall& call, const Device& device);
ScheduleRows most_schedule_rows(const ScheduledCall& call, const Device& device);

// When a schedule is made: where the call has less to do with it; where that is to be expected of calls whose tokens may have any rows up
// to the width, as those of a captured step: so for all such calls, or none.
enum class ScheduleWhen : uint8_t { faster, far_bound, always };

// Writes a schedule to host memory, pieces i32 [P, 8] and merges i32 [M, 4] as schedule_rows() says, which is more than 0. rows: of
// call.num_tokens tokens. How many of them are cut; nothing, and what is written is of no meaning, where there is to be none.
std::optional<int64_t> make_schedule(const ScheduledCall& call, std::span<const AttendedRows> rows, ScheduleWhen when, const Device& device,
                                     const TensorView& pieces, const TensorView& merges);

}  // namespace ops
}  // namespace strata
