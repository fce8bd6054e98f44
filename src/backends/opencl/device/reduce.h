// Sums and maxima over a work-group. All items call it, and all get the result. `scratch` has one float per item and begins at a multiple
// of 16 bytes. The first step is a barrier, so that scratch may be reused immediately.
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

// Reduces kCount floats.
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
// An instruction reduces each sub-group; every item then reduces the sub-groups' results in local memory.
template <class Operation, int kItems>
inline float reduce(float value, __local float* scratch) {
  const float own = Operation::of_subgroup(value);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (get_sub_group_local_id() == 0) scratch[get_sub_group_id()] = own;
  barrier(CLK_LOCAL_MEM_FENCE);
  return reduce_floats<Operation, kItems / STRATA_SUBGROUP>(scratch);
}
#else
// The first 16 items compute partial results; every item then reduces those.
template <class Operation, int kItems>
inline float reduce(float value, __local float* scratch) {
  constexpr int kPartials = 16;
  const int item = get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  scratch[item] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < kPartials) {
#pragma unroll
    for (int i = kPartials; i < kItems; i += kPartials) value = Operation::of(value, scratch[item + i]);
    scratch[item] = value;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return reduce_floats<Operation, kPartials>(scratch);
}
#endif

// The same over each kItems consecutive items of the work-group, which share a row. kItems is at most 16.
template <class Operation, int kItems>
inline float reduce_row(float value, __local float* scratch) {
  const int item = get_local_id(0);
#ifdef STRATA_SUBGROUP
  static_assert(kItems % STRATA_SUBGROUP == 0);
  constexpr int kPartials = kItems / STRATA_SUBGROUP;
  value = Operation::of_subgroup(value);
  if (kPartials == 1) return value;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (get_sub_group_local_id() == 0) scratch[get_sub_group_id()] = value;
#else
  constexpr int kPartials = kItems;
  barrier(CLK_LOCAL_MEM_FENCE);
  scratch[item] = value;
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  return reduce_floats<Operation, kPartials>(scratch + item / kItems * kPartials);
}

}  // namespace strata::opencl

// The sub-group size that a kernel is compiled for. Empty in a basic module.
#ifdef STRATA_SUBGROUP
#define STRATA_SUBGROUPS __attribute__((intel_reqd_sub_group_size(STRATA_SUBGROUP)))
#else
#define STRATA_SUBGROUPS
#endif
