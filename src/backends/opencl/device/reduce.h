// Sums and maxima over a work-group. `scratch` has a float for each of its items and begins at a multiple of 16 bytes; all items call it,
// and all get the result. It begins with a barrier, so that scratch may be used again at once.
#pragma once

#include <cstdint>

namespace strata::opencl {

struct Add {
  static float of(float a, float b) { return a + b; }
  static float4 of(float4 a, float4 b) { return a + b; }
#ifdef STRATA_SUBGROUP
  static float of_subgroup(float v) { return sub_group_reduce_add(v); }
#endif
};
struct Max {
  static float of(float a, float b) { return fmax(a, b); }
  static float4 of(float4 a, float4 b) { return fmax(a, b); }
#ifdef STRATA_SUBGROUP
  static float of_subgroup(float v) { return sub_group_reduce_max(v); }
#endif
};

// Of kCount floats.
template <class Operation, int kCount>
inline float reduce_floats(const __local float* from) {
  if constexpr (kCount % 4 == 0) {
    float4 v = *(const __local float4*)from;
#pragma unroll
    for (int i = 4; i < kCount; i += 4) v = Operation::of(v, *(const __local float4*)(from + i));
    return Operation::of(Operation::of(v.x, v.y), Operation::of(v.z, v.w));
  } else {
    float result = from[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) result = Operation::of(result, from[i]);
    return result;
  }
}

#ifdef STRATA_SUBGROUP
// Within sub-groups by the instruction, of their results in local memory.
template <class Operation, int kItems>
inline float reduce(float value, __local float* scratch) {
  const float own = Operation::of_subgroup(value);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (get_sub_group_local_id() == 0) scratch[get_sub_group_id()] = own;
  barrier(CLK_LOCAL_MEM_FENCE);
  return reduce_floats<Operation, kItems / STRATA_SUBGROUP>(scratch);
}
#else
// The first 16 items have the parts that all add.
template <class Operation, int kItems>
inline float reduce(float value, __local float* scratch) {
  constexpr int kParts = 16;
  const int item = get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  scratch[item] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < kParts) {
#pragma unroll
    for (int i = kParts; i < kItems; i += kParts) value = Operation::of(value, scratch[item + i]);
    scratch[item] = value;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return reduce_floats<Operation, kParts>(scratch);
}
#endif

// The same over each kItems consecutive items of the work-group, at most 16, that have a row together.
template <class Operation, int kItems>
inline float reduce_row(float value, __local float* scratch) {
  const int item = get_local_id(0);
#ifdef STRATA_SUBGROUP
  static_assert(kItems % STRATA_SUBGROUP == 0);
  constexpr int kParts = kItems / STRATA_SUBGROUP;
  value = Operation::of_subgroup(value);
  if (kParts == 1) return value;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (get_sub_group_local_id() == 0) scratch[get_sub_group_id()] = value;
#else
  constexpr int kParts = kItems;
  barrier(CLK_LOCAL_MEM_FENCE);
  scratch[item] = value;
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  return reduce_floats<Operation, kParts>(scratch + item / kItems * kParts);
}

}  // namespace strata::opencl

// The sub-groups that a kernel is compiled for; nothing in a basic module.
#ifdef STRATA_SUBGROUP
#define STRATA_SUBGROUPS __attribute__((intel_reqd_sub_group_size(STRATA_SUBGROUP)))
#else
#define STRATA_SUBGROUPS
#endif
