// How a replay of a recording is divided into steps.
#pragma once

#include <cstdint>

namespace strata {

struct Schedule {
  const char* name;
  bool together;  // all sequences in one batch
  int64_t chunk;  // prefill tokens of a step; 0: the recorded prefill in one
};

inline constexpr Schedule kSchedules[] = {{"whole_together", true, 0}, {"chunk64_together", true, 64}, {"chunk1_together", true, 1},
                                          {"whole_alone", false, 0},   {"chunk64_alone", false, 64},   {"chunk1_alone", false, 1}};

}  // namespace strata
