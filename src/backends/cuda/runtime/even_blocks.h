// Blocks of a small grid in equal numbers on all SMs, where grids like it follow one another.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/cuda/runtime/cuda_device.h"
#include "core/ceil_div.h"

namespace strata::cuda {

// Dynamic shared memory that each block of a grid of some blocks an SM asks for, not to use it, but so that an SM has room for twice its
// share of them and no more: for this grid's, and for those of the next one, which start early (early_launch.cuh) and then find the same
// room everywhere. With more room an SM that happens to be empty first gets several shares, and all wait for it. 0 where nothing starts
// early, where a block an SM is all, and where the threads alone leave no more room.
inline size_t even_shared_bytes(int64_t blocks, int threads, const Capabilities& device) {
  constexpr int64_t kSmThreads = 2048;
  constexpr int64_t kOwn = 1024;        // of each block, for the system
  constexpr int64_t kFree = 48 * 1024;  // that no kernel needs leave for: enough to keep a fifth block off an SM
  const int64_t places = 2 * ceil_div(blocks, device.num_sms);
  if (!device.sm90() || blocks <= device.num_sms || places * threads >= kSmThreads) return 0;
  return static_cast<size_t>(std::min((device.max_shared_bytes + kOwn) / places - kOwn, kFree) / 128 * 128);
}

}  // namespace strata::cuda
