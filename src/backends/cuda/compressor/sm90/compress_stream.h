// compress_norm_rope_store of many tokens on Hopper, d = 512.
#pragma once

#include "strata/op.h"
#include "strata/ops/compressor.h"

namespace strata::cuda {

// One function per ratio; the state must have pages.
void compress_4_stream(const CompressNormRopeStoreParams& p, const ExecutionContext& context);
void compress_128_stream(const CompressNormRopeStoreParams& p, const ExecutionContext& context);

}  // namespace strata::cuda
