#include "backends/cuda/runtime/early_launch.cuh"

namespace strata::cuda {
namespace {

// 100 * major + 10 * minor of the architectures that this file, and every other kernel of cuda/smxx, is compiled for.
constexpr int kCompiledFor[] = {__CUDA_ARCH_LIST__};

}  // namespace

// On another major version, translated code of an earlier one might run, which does not wait.
bool launches_early(const Device& device) {
  const Capabilities c = capabilities(device);
  if (c.major < 9) return false;
  for (const int compiled : kCompiledFor) {
    if (compiled / 100 == c.major && compiled <= c.major * 100 + c.minor * 10) return true;
  }
  return false;
}

}  // namespace strata::cuda
