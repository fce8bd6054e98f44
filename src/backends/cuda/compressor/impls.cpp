// The lists of the compressor's ops, fastest first.
#include "backends/cuda/compressor/impls.h"

#include "backends/cuda/cuda_ops.h"
#include "ops/compressor/save_in_front.h"
#include "ops/factories.h"

namespace strata::cuda {

std::vector<Implementation<SavePartialStatesParams>> save_partial_states() { return {save_partial_states_smxx()}; }

std::vector<Implementation<CompressNormRopeStoreParams>> compress_norm_rope_store() {
  return ops::join(std::vector{save_and_compress_4()}, ops::save_in_front({compress_stream(), compress_smxx()}, save_partial_states()));
}

}  // namespace strata::cuda
