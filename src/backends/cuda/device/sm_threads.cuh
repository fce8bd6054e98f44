// How many threads an SM holds at once, which launch bounds must not exceed.
#pragma once

namespace strata::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 800 && __CUDA_ARCH__ != 900 && __CUDA_ARCH__ != 1000
constexpr int kThreadsOnSm = 1536;  // 8.6, 8.9, 12.0
#else
constexpr int kThreadsOnSm = 2048;
#endif

// The minimum blocks per SM for __launch_bounds__, at most `requested`.
constexpr int blocks_on_sm(int requested, int threads) { return requested * threads <= kThreadsOnSm ? requested : kThreadsOnSm / threads; }

}  // namespace strata::cuda
