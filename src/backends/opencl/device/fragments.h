// Fragments of the matrix engine in local memory, in the order in which items read them: 16 bytes for every item of the sub-group, then the
// next 16 bytes. Reads have no bank conflicts, nor do writes of neighbouring items to neighbouring rows.
#pragma once

#include <cstdint>

#include "backends/opencl/device/matrix.h"

namespace strata::opencl {

// Size of a fragment, in units of 16 bytes.
constexpr int kUnitsA = 16;
constexpr int kUnitsB = 2 * STRATA_SUBGROUP;

inline FragmentA read_a(const __local uint4* fragment) {
  const int lane = get_sub_group_local_id();
#if STRATA_SUBGROUP == 16
  return as_short8(fragment[lane]);
#else
  return (int8)(as_int4(fragment[lane]), as_int4(fragment[STRATA_SUBGROUP + lane]));
#endif
}
// low, high: the slots of the first and the second half of the item's column.
inline FragmentB read_b(const __local uint4* fragment, int low, int high) {
  return (int8)(as_int4(fragment[low]), as_int4(fragment[STRATA_SUBGROUP + high]));
}
inline FragmentB read_b(const __local uint4* fragment) {
  const int lane = get_sub_group_local_id();
  return read_b(fragment, lane, lane);
}

// Stores columns 2 * pair and 2 * pair + 1 of a row of A.
inline void write_a(__local uint4* fragment, int row, int pair, uint32_t values) {
#if STRATA_SUBGROUP == 16
  __local uint16_t* to = (__local uint16_t*)fragment + 2 * pair * kMatrixRows + row;
  to[0] = (uint16_t)values;
  to[kMatrixRows] = (uint16_t)(values >> 16);
#else
  ((__local uint32_t*)fragment)[(row / 4 * STRATA_SUBGROUP + pair) * 4 + row % 4] = values;
#endif
}

}  // namespace strata::opencl
