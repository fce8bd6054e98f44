#include "backends/cuda/linear/sm90/token_product.h"

#include <fmt/format.h>

#include "backends/cuda/linear/product_output.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "core/ceil_div.h"
#include "contracts/row_alignment.h"

namespace strata::cuda::sm90 {

std::string token_product_refusal(const LinearWeight& w, const TensorView& x) {
  if (w.k % 16 != 0) return fmt::format("needs a multiple of 16 input features, got {}", w.k);
  if (w.block_k != kLinearBlock || w.block_n % kLinearRows != 0) {
    return fmt::format("needs weight scales of (a multiple of {}) x {} blocks, has {} x {}", kLinearRows, kLinearBlock, w.block_n,
                       w.block_k);
  }
  if (w.groups > 1 && w.n % kLinearRows != 0) {
    return fmt::format("groups must be a multiple of {} rows, have {}", kLinearRows, w.n);
  }
  if (x.dtype == DType::e4m3 && ops::row_alignment(x) != 16) return "rows of FP8 values must begin at multiples of 16 bytes";
  return {};
}

TokenProductArgs::TokenProductArgs(const TokenProduct& p)
    : x_scale(p.x_scale.ptr<float>()),
      x_scale_token(p.x_scale.stride[0]),
      x_scale_group(p.x_scale.stride[1]),
      x_scale_block(p.x_scale.stride[2]),
      w_scale(p.weight.scale.ptr<float>()),
      w_scale_stride(p.weight.scale.stride[0]),
      weight_block_rows(static_cast<int>(p.weight.block_n)),
      num_tokens(static_cast<int>(p.x.shape[0])),
      n(static_cast<int>(p.weight.n)),
      num_blocks(static_cast<int>(ceil_div(p.weight.k, int64_t{kLinearBlock}))) {
  set_output(*this, p.y);
}

TokenProductMaps::TokenProductMaps(const TokenProduct& p, int tile_rows)
    : weight(tensor_map("weight", p.weight.weight.data, DType::e4m3, p.weight.groups * p.weight.n, p.weight.k, p.weight.k, tile_rows)),
      x(tensor_map("x", p.x.data, p.x.shape[1], p.x.shape[0], p.weight.k / 2, p.x.stride[1] / 2, p.x.stride[0] / 2,
                   token_product_rows(p.x.shape[0]))) {}

}  // namespace strata::cuda::sm90
