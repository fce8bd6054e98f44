// A block of threads has a part's block of 64 features and 128 channels, 8 KB of codes. Packing is done once; unpacking is memory-bound:
// 3 bytes a code over memory bandwidth, 33.5 million codes 23 us at 4.3 TB/s.
#include "backends/cuda/common/check.h"
#include "backends/cuda/common/launch_config.h"
#include "backends/cuda/common/warp.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/sm90/linear_mixed/mixed_values.cuh"
#include "backends/cuda/sm90/linear_mixed/mixed_word.h"
#include "backends/cuda/sm90/linear_mixed/packed.h"
#include "formats/e4m3.h"

namespace strata::cuda::sm90 {
namespace {

constexpr int kThreads = kMixedPartBytes / 16;  // a piece each

// Where a piece's codes are in the part's block: channels first, first + 1, first + 8 and first + 9 of each 16 of 64.
struct Piece {
  int row, first;
  __device__ explicit Piece(int piece)
      : row(piece / 128 * 16 + piece / 32 % 2 * 8 + piece % 32 / 4), first(piece / 64 % 2 * 64 + piece % 4 * 2) {}
};

// blockIdx.x: the part, of all groups; blockIdx.y: the block of channels.
__device__ int64_t part_offset() { return ((int64_t{blockIdx.x} / 2 * gridDim.y + blockIdx.y) * 2 + blockIdx.x % 2) * kMixedPartBytes; }

__global__ void __launch_bounds__(kThreads)
    pack_kernel(const E4m3* __restrict__ weight, int64_t k, const float* __restrict__ scales, int64_t scale_stride, int64_t block_n,
                int64_t block_k, uint8_t* __restrict__ codes, float* __restrict__ packed_scales) {
  const Piece piece(static_cast<int>(threadIdx.x));
  const int64_t row = int64_t{blockIdx.x} * kMixedRows + piece.row, block = int64_t{blockIdx.y} * kMixedBlock;
  uint32_t words[4];
  bool nan = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const E4m3* const from = weight + row * k + block + piece.first + 16 * i;
    const uint32_t four[] = {from[0].bits, from[1].bits, from[8].bits, from[9].bits};
    words[i] = mixed_word(four[0], four[1], four[2], four[3]);
#pragma unroll
    for (const uint32_t code : four) nan |= (code & 0x7F) == 0x7F;
  }
  *reinterpret_cast<uint4*>(codes + part_offset() + threadIdx.x * 16) = make_uint4(words[0], words[1], words[2], words[3]);
  nan = __syncthreads_or(nan);
  if (threadIdx.x == 0) {
    const float scale = scales[int64_t{blockIdx.x} * kMixedRows / block_n * scale_stride + block / block_k];
    packed_scales[int64_t{blockIdx.x} * gridDim.y + blockIdx.y] = nan ? __int_as_float(0x7FFFFFFF) : scale;
  }
}

// Of four lanes that have the codes of four places in each 16 channels of a row, each gets all of 16 channels: element i of lane q goes to
// element q of lane i.
__device__ __forceinline__ void exchange(uint32_t (&pairs)[4]) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t got = __shfl_xor_sync(~0u, upper ? pairs[i] : pairs[i | distance], distance);
      (upper ? pairs[i] : pairs[i | distance]) = got;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    unpack_kernel(const uint8_t* __restrict__ codes, const float* __restrict__ packed_scales, int64_t k, Bf16* __restrict__ out) {
  ptx::launch_dependents();
  const uint4 words = *reinterpret_cast<const uint4*>(codes + part_offset() + threadIdx.x * 16);
  const MixedScale scale(packed_scales[int64_t{blockIdx.x} * gridDim.y + blockIdx.y]);
  uint32_t low[4], high[4];  // of the lower and the upper eight of 16 channels
  mixed_values(words.x, scale, low[0], high[0]);
  mixed_values(words.y, scale, low[1], high[1]);
  mixed_values(words.z, scale, low[2], high[2]);
  mixed_values(words.w, scale, low[3], high[3]);
  if (scale.has_rest) {
#pragma unroll
    for (int i = 0; i < 4; ++i) low[i] = ptx::mul_bf16x2(low[i], scale.rest), high[i] = ptx::mul_bf16x2(high[i], scale.rest);
  }
  exchange(low);
  exchange(high);
  const Piece piece(static_cast<int>(threadIdx.x));
  const int channel = piece.first / 64 * 64 + static_cast<int>(threadIdx.x) % 4 * 16;
  Bf16* const to = out + (int64_t{blockIdx.x} * kMixedRows + piece.row) * k + int64_t{blockIdx.y} * kMixedBlock + channel;
  ptx::wait_for_previous_kernel();  // which may still read what was here
  *reinterpret_cast<uint4*>(to) = make_uint4(low[0], low[1], low[2], low[3]);
  *reinterpret_cast<uint4*>(to + 8) = make_uint4(high[0], high[1], high[2], high[3]);
}

dim3 grid_of(const LinearWeight& w) {
  return dim3(static_cast<unsigned>(w.groups * w.n / kMixedRows), static_cast<unsigned>(w.k / kMixedBlock));
}

}  // namespace

void pack_mixed(const LinearWeight& w, void* packed, cudaStream_t stream) {
  auto* const codes = static_cast<uint8_t*>(packed);
  pack_kernel<<<grid_of(w), kThreads, 0, stream>>>(w.weight.ptr<E4m3>(), w.k, w.scale.ptr<float>(), w.scale.stride[0], w.block_n, w.block_k,
                                                   codes, reinterpret_cast<float*>(codes + mixed_code_bytes(w)));
  check_launch("pack_kernel");
}

void unpack_mixed(const LinearWeight& w, Bf16* out, cudaStream_t stream) {
  const uint8_t* const codes = w.packed.ptr<uint8_t>();
  const LaunchConfig config({.grid = grid_of(w), .block = dim3(kThreads)}, stream, /*early=*/true);
  check(cudaLaunchKernelEx(config.get(), unpack_kernel, codes, reinterpret_cast<const float*>(codes + mixed_code_bytes(w)), w.k, out),
        "unpack_kernel");
}

}  // namespace strata::cuda::sm90
