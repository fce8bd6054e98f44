// Kernels that start while the preceding kernel of the stream still runs, and so hide their launch latency: for sequences of small kernels,
// on compute capability 9.0 and later. Such a kernel calls start_early() before anything else, and is launched by launch_early().
#pragma once

#include <utility>

#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/runtime/launch_config.h"
#include "strata/op.h"

namespace strata::cuda {

// Whether the code that runs on this device waits for the preceding kernel by itself: it was compiled for 9.0 or later.
bool launches_early(const Device& device);

// Lets the next kernel start, and waits until all preceding kernels have finished and their writes are visible. Required in every thread
// that may do work: the next kernel takes this kernel's end as the end of everything before it.
__device__ __forceinline__ void start_early() {
#if __CUDA_ARCH__ >= 900
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
#endif
}

// The same; meanwhile() prefetches what will be read (touch.cuh), or sets up what no preceding kernel affects. Not before 9.0.
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
