// The lists of the compressor's ops, fastest first.
#include "backends/cuda/compressor/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<SavePartialStatesParams>> save_partial_states() { return {save_partial_states_smxx()}; }

std::vector<Implementation<CompressNormRopeStoreParams>> compress_norm_rope_store() {
  return {save_and_compress_4(), compress_stream(), compress_smxx()};
}

}  // namespace strata::cuda
