// compress_norm_rope_store of ratio 128 and many tokens on Hopper.
#pragma once

#include "backends/cuda/common/implementation.h"
#include "strata/ops/compressor.h"

namespace strata::cuda {

Implementation<CompressNormRopeStoreParams> compress_128_stream();

}  // namespace strata::cuda
