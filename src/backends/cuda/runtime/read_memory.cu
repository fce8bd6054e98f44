// Reads device memory and does nothing else: the roof of memory-bound kernels. Floor: bytes / bandwidth of the device.
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/runtime/probes.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerSm = 4;
constexpr int kUnroll = 8;  // independent 16-byte loads per thread: 128 KiB in flight per SM

__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* data, size_t n, uint32_t* sink) {
  const size_t tile = size_t{kThreads} * kUnroll;
  uint32_t sum = 0;
  for (size_t first = blockIdx.x * tile; first + tile <= n; first += gridDim.x * tile) {
    uint4 v[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) v[i] = __ldcs(data + first + i * kThreads + threadIdx.x);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (sum == 0x9E3779B9u) *sink = sum;  // hardly ever true; without it the reads would be eliminated
}

}  // namespace

void read_memory(const Device& device, const void* data, size_t bytes, void* sink, Stream stream) {
  DeviceScope scope(device.id().index);
  const int blocks = capabilities(device).num_sms * kBlocksPerSm;
  read_kernel<<<blocks, kThreads, 0, native(stream)>>>(static_cast<const uint4*>(data), bytes / sizeof(uint4),
                                                       static_cast<uint32_t*>(sink));
  check_launch("read_memory");
}

}  // namespace strata::cuda
