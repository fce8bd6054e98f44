// How many threads an SM holds at once, which launch bounds must not exceed.
#pragma once

namespace strata::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 800 && __CUDA_ARCH__ != 900 && __CUDA_ARCH__ != 1000
constexpr int kThreadsOnSm = 1536;  // 8.6, 8.9, 12.0
#else
constexpr int kThreadsOnSm = 2048;
#endif

// The least blocks on an SM that __launch_bounds__ may ask for, of `wanted`.
constexpr int blocks_on_sm(int wanted, int threads) { return wanted * threads <= kThreadsOnSm ? wanted : kThreadsOnSm / threads; }

}  // namespace strata::cuda
