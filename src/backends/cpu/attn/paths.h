// The functions of each execution path; attend.cpp dispatches to them.
#pragma once

#include <cstddef>

#include "attend.h"

namespace strata::cpu {

// A partial result in memory. The order of acc is private to the path, so the path's own functions combine and finish it.
struct PartialView {
  float *max2, *sum, *acc;
};
inline int padded_heads(int n) { return (n + 15) & ~15; }
inline PartialView partial_view(float* p, int num_heads) {
  const int hp = padded_heads(num_heads);
  return {p, p + hp, p + 2 * hp};
}

struct PathFunctions {
  std::size_t (*scratch_bytes)(const AttendShape&, int num_heads);
  void (*accumulate)(const AttendShape&, const AttendQuery&, HeadRange, std::int64_t block_begin, std::int64_t block_end,
                     std::byte* scratch, PartialView);
  void (*combine)(int num_heads, int value_dim, PartialView into, PartialView from);
  void (*finish)(const AttendShape&, const AttendQuery&, HeadRange, PartialView);
};

extern const PathFunctions kAmxPath;
extern const PathFunctions kAvx512Bf16Path;
// fp32 vectors, with the widest target allowed.
extern const PathFunctions kAvx512Path;
extern const PathFunctions kAvx2Path;
extern const PathFunctions kPortablePath;

}  // namespace strata::cpu
