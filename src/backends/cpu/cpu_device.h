// The CPU as a device: host memory, every call runs to its end, the process's team of threads (core/thread_team.h).
#pragma once

#include <cstdint>
#include <memory>

#include "core/thread_team.h"
#include "strata/device.h"

namespace strata::cpu {

// What the kernels may use: the machine's features, capped by Config::cpu_isa. CpuIsa::best never appears here.
CpuIsa isa_of(const Device& device);
int threads_of(const Device& device);

std::shared_ptr<Device> make_device(DeviceId id, const Config& config);

// f(i) for i in [0, n), in blocks of `grain` that the device's threads take one after the other; thread_index() says which thread it is. f
// must not throw.
template <class F>
void parallel_for(const Device& device, int64_t n, int64_t grain, F&& f) {
  const int threads = n <= grain ? 1 : threads_of(device);
  for_each_of((n + grain - 1) / grain, threads, [&](int64_t block) {
    const int64_t end = n < (block + 1) * grain ? n : (block + 1) * grain;
    for (int64_t i = block * grain; i < end; ++i) f(i);
  });
}

}  // namespace strata::cpu
