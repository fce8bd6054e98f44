// The CPU as a device: host memory, synchronous calls, the process's team of threads (core/thread_team.h).
#pragma once

#include <cstdint>
#include <memory>

#include "core/thread_team.h"
#include "strata/device.h"

namespace strata::cpu {

// The instruction set that kernels may use: the machine's, capped by Config::cpu_isa. Never CpuIsa::best.
CpuIsa isa_of(const Device& device);
int threads_of(const Device& device);

std::shared_ptr<Device> make_device(DeviceId id, const Config& config);

// Calls f(i) for i in [0, n), in blocks of `grain` that the device's threads process one after the other. thread_index() is the thread's
// index. f must not throw.
template <class F>
void parallel_for(const Device& device, int64_t n, int64_t grain, F&& f) {
  const int threads = n <= grain ? 1 : threads_of(device);
  for_each_of((n + grain - 1) / grain, threads, [&](int64_t block) {
    const int64_t end = n < (block + 1) * grain ? n : (block + 1) * grain;
    for (int64_t i = block * grain; i < end; ++i) f(i);
  });
}

}  // namespace strata::cpu
