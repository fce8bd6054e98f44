// A CTA packs a row group's block of 64 features and 128 channels, 8 KB. Done once, when a model is loaded.
#include "backends/cuda/linear/sm90/mixed/mixed_word.h"
#include "backends/cuda/linear/sm90/mixed/packed.h"
#include "backends/cuda/runtime/check.h"
#include "formats/e4m3.h"

namespace strata::cuda::sm90 {
namespace {

constexpr int kThreads = kMixedRowTileBytes / 16;  // a 16-byte unit each

// Position of a unit's values in the block: channels first, first + 1, first + 8 and first + 9 of each 16 of 64.
struct Unit {
  int row, first;
  __device__ explicit Unit(int unit) : row(unit / 128 * 16 + unit / 32 % 2 * 8 + unit % 32 / 4), first(unit / 64 % 2 * 64 + unit % 4 * 2) {}
};

// blockIdx.x: the row group, over all groups; blockIdx.y: the block of channels.
__device__ int64_t row_tile_offset() {
  return ((int64_t{blockIdx.x} / 2 * gridDim.y + blockIdx.y) * 2 + blockIdx.x % 2) * kMixedRowTileBytes;
}

__global__ void __launch_bounds__(kThreads)
    pack_kernel(const E4m3* __restrict__ weight, int64_t k, const float* __restrict__ scales, int64_t scale_stride, int64_t block_n,
                int64_t block_k, uint8_t* __restrict__ packed_weight, float* __restrict__ packed_scales) {
  const Unit unit(static_cast<int>(threadIdx.x));
  const int64_t row = int64_t{blockIdx.x} * kMixedRows + unit.row, block = int64_t{blockIdx.y} * kMixedBlock;
  uint32_t words[4];
  bool nan = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const E4m3* const from = weight + row * k + block + unit.first + 16 * i;
    const uint32_t four[] = {from[0].bits, from[1].bits, from[8].bits, from[9].bits};
    words[i] = mixed_word(four[0], four[1], four[2], four[3]);
#pragma unroll
    for (const uint32_t byte : four) nan |= (byte & 0x7F) == 0x7F;
  }
  *reinterpret_cast<uint4*>(packed_weight + row_tile_offset() + threadIdx.x * 16) = make_uint4(words[0], words[1], words[2], words[3]);
  nan = __syncthreads_or(nan);
  if (threadIdx.x == 0) {
    const float scale = scales[int64_t{blockIdx.x} * kMixedRows / block_n * scale_stride + block / block_k];
    packed_scales[int64_t{blockIdx.x} * gridDim.y + blockIdx.y] = nan ? __int_as_float(0x7FFFFFFF) : scale;
  }
}

}  // namespace

void pack_mixed(const LinearWeight& w, void* packed, cudaStream_t stream) {
  auto* const packed_weight = static_cast<uint8_t*>(packed);
  const dim3 grid(static_cast<unsigned>(w.groups * w.n / kMixedRows), static_cast<unsigned>(w.k / kMixedBlock));
  pack_kernel<<<grid, kThreads, 0, stream>>>(w.weight.ptr<E4m3>(), w.k, w.scale.ptr<float>(), w.scale.stride[0], w.block_n, w.block_k,
                                             packed_weight, reinterpret_cast<float*>(packed_weight + packed_weight_bytes(w)));
  check_launch("pack_kernel");
}

}  // namespace strata::cuda::sm90
