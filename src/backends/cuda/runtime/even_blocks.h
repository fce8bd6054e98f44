// Distributes the CTAs of a small grid evenly over all SMs, where such grids follow one another.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/cuda/runtime/cuda_device.h"
#include "core/ceil_div.h"

namespace strata::cuda {

// Dynamic shared memory per CTA, for a grid of a few CTAs per SM. It is not used; it limits an SM to twice its share of CTAs. That is room
// for this grid's CTAs, and for those of the next grid, which start early (early_launch.cuh) and then find equal room everywhere. With more
// room, an SM that happens to be empty first would get several shares, and all would wait for it. 0 where nothing starts early, where there
// is one CTA per SM, and where the threads alone leave no more room.
inline size_t even_shared_bytes(int64_t blocks, int threads, const Capabilities& device) {
  constexpr int64_t kSmThreads = 2048;
  constexpr int64_t kOwn = 1024;        // per CTA, for the system
  constexpr int64_t kFree = 48 * 1024;  // for other kernels: enough to keep a fifth CTA off an SM
  const int64_t slots = 2 * ceil_div(blocks, device.num_sms);
  if (!device.sm90() || blocks <= device.num_sms || slots * threads >= kSmThreads) return 0;
  return static_cast<size_t>(std::min((device.max_shared_bytes + kOwn) / slots - kOwn, kFree) / 128 * 128);
}

}  // namespace strata::cuda
