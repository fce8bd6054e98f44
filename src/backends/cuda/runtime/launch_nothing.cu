// A kernel without work: what a launch costs, and so what no op can be faster than.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda {
namespace {

__global__ void empty_kernel() {}

}  // namespace

void launch_nothing(Device& device, Stream stream) {
  DeviceScope scope(device.id().index);
  empty_kernel<<<1, 32, 0, native(stream)>>>();
  check_launch("empty_kernel");
}

}  // namespace strata::cuda
