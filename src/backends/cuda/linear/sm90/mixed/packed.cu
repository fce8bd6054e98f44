// A block of threads has a part's block of 64 features and 128 channels, 8 KB of codes. Done once, when a model is loaded.
#include "backends/cuda/linear/sm90/mixed/mixed_word.h"
#include "backends/cuda/linear/sm90/mixed/packed.h"
#include "backends/cuda/runtime/check.h"
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

}  // namespace

void pack_mixed(const LinearWeight& w, void* packed, cudaStream_t stream) {
  auto* const codes = static_cast<uint8_t*>(packed);
  const dim3 grid(static_cast<unsigned>(w.groups * w.n / kMixedRows), static_cast<unsigned>(w.k / kMixedBlock));
  pack_kernel<<<grid, kThreads, 0, stream>>>(w.weight.ptr<E4m3>(), w.k, w.scale.ptr<float>(), w.scale.stride[0], w.block_n, w.block_k,
                                             codes, reinterpret_cast<float*>(codes + mixed_code_bytes(w)));
  check_launch("pack_kernel");
}

}  // namespace strata::cuda::sm90
