// Requirements on a schedule whose bytes are private to an implementation.
#pragma once

#include "core/check.h"

namespace strata::ops {

inline void check_schedule(ParamCheck& c, const TensorView& schedule) {
  if (!schedule.present()) return;
  c.view("schedule", schedule, DType::u8, {kAny});
  c.contiguous("schedule", schedule);
  c.require(reinterpret_cast<uintptr_t>(schedule.data) % 4 == 0, "schedule must begin at a multiple of 4 bytes, is at {}", schedule.data);
}

}  // namespace strata::ops
