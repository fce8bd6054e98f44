#include "backends/cuda/sm90/linear/kernel.cuh"

namespace strata::cuda::sm90 {
namespace {

template <int kTokens, int kParts>
const void* kernel() {
  return reinterpret_cast<const void*>(&few_tokens_kernel<kTokens, kParts>);
}

}  // namespace

const void* linear_kernel(const LinearTile& tile) {
  switch (tile.tokens) {
    case 8: return tile.parts == 2 ? kernel<8, 2>() : kernel<8, 1>();
    case 16: return tile.parts == 2 ? kernel<16, 2>() : kernel<16, 1>();
    case 32: return tile.parts == 2 ? kernel<32, 2>() : kernel<32, 1>();
    default: return kernel<64, 1>();
  }
}

}  // namespace strata::cuda::sm90
