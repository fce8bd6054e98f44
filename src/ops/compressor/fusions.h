// The prologue of compress_norm_rope_store as a separate op.
#pragma once

#include "contracts/fused_calls.h"
#include "strata/op.h"
#include "strata/ops/compressor.h"

namespace strata::ops {

// `compression`, completed by the prologue where its kernels do not fuse it.
Implementation<CompressNormRopeStoreParams> with_compress_fusions(Implementation<CompressNormRopeStoreParams> compression);

}  // namespace strata::ops
