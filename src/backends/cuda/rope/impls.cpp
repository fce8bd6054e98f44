// The lists of the rotary ops, fastest first.
#include "backends/cuda/rope/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<InverseRopeParams>> inverse_rope() { return {inverse_rope_smxx()}; }
std::vector<Implementation<InverseRopeQuantParams>> inverse_rope_quant() { return {inverse_rope_quant_smxx()}; }

}  // namespace strata::cuda
