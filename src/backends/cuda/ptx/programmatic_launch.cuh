// Kernels that start before the preceding kernel of the stream has finished. sm_90.
#pragma once

namespace strata::cuda::ptx {

// The next kernel of the stream, if launched with programmatic serialization, may start once every CTA has called this or has exited.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Waits until the preceding kernel has finished and its writes are visible. Returns at once after an ordinary launch.
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace strata::cuda::ptx
