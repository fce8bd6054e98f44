// What each execution path provides; attend.cpp dispatches to these.
#pragma once

#include <cstddef>

#include "attend.h"

namespace strata::cpu {

// A partial result in memory. acc is in the path's own order; merge and finish belong to the same path.
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
  void (*merge)(int num_heads, int value_dim, PartialView into, PartialView from);
  void (*finish)(const AttendShape&, const AttendQuery&, HeadRange, PartialView);
};

extern const PathFunctions kAmxPath;
extern const PathFunctions kAvx512Bf16Path;
// fp32 vectors, by the widest target that may be used.
extern const PathFunctions kAvx512Path;
extern const PathFunctions kAvx2Path;
extern const PathFunctions kPortablePath;

}  // namespace strata::cpu
