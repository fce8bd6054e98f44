// The implementations of the compressor's ops on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/compressor.h"

namespace strata::cuda {

Implementation<SavePartialStatesParams> save_partial_states_smxx();  // "cuda/smxx"

Implementation<CompressNormRopeStoreParams> save_and_compress_4();  // "cuda/smxx_saving": few tokens of ratio 4 with the step's saves
Implementation<CompressNormRopeStoreParams> compress_stream();      // "cuda/sm90": many tokens, d = 512
Implementation<CompressNormRopeStoreParams> compress_smxx();        // "cuda/smxx"

}  // namespace strata::cuda
