// Kernels that start before the one in front of them has ended. sm_90.
#pragma once

namespace strata::cuda::ptx {

// The next kernel of the stream, when launched with programmatic serialization, may begin once every block has said so or has ended.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Waits until the kernel in front has ended and its writes are visible. Nothing to wait for after an ordinary launch.
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace strata::cuda::ptx
