// compress_norm_rope_store of few tokens of ratio 4 with the step's saves in one kernel.
#pragma once

#include "backends/cuda/common/implementation.h"
#include "strata/ops/compressor.h"

namespace strata::cuda {

Implementation<CompressNormRopeStoreParams> save_and_compress_4();

}  // namespace strata::cuda
