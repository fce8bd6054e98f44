// Kernels that start while the one in front of them in the stream still runs, and so hide what starting costs: for small kernels in a row,
// on compute capability 9.0 and later. Such a kernel calls start_early() before anything else, and is launched by launch_early().
#pragma once

#include <utility>

#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/runtime/launch_config.h"
#include "strata/op.h"

namespace strata::cuda {

// Whether the code that runs on this device waits for the kernel in front by itself: it was compiled for 9.0 or later.
bool launches_early(const Device& device);

// Lets the next kernel start, and waits until everything in front of this one is done and visible. In every thread that is not known to do
// nothing: the next kernel takes this one's end as the end of all before it.
__device__ __forceinline__ void start_early() {
#if __CUDA_ARCH__ >= 900
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
#endif
}

// The same; meanwhile() brings near what is going to be read (touch.cuh), or sets up what no kernel in front decides. Not before 9.0.
template <class Meanwhile>
__device__ __forceinline__ void start_early(const Meanwhile& meanwhile) {
#if __CUDA_ARCH__ >= 900
  ptx::launch_dependents();
  meanwhile();
  ptx::wait_for_previous_kernel();
#else
  (void)meanwhile;
#endif
}

template <class... Params, class... Args>
void launch_early(const char* name, void (*kernel)(Params...), const LaunchShape& shape, const ExecutionContext& context, Args&&... args) {
  const LaunchConfig config(shape, native(context.stream), launches_early(context.device));
  check(cudaLaunchKernelEx(config.get(), kernel, std::forward<Args>(args)...), name);
}

}  // namespace strata::cuda
