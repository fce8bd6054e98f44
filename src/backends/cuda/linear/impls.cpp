// Linear layers on CUDA. FP8 on Hopper: Strata's kernels multiply few tokens, where only reading the weight once matters, and many tokens.
// Both together multiply whole tiles of many tokens and a few more. cuBLASLt, which supports the block scales, takes the range between,
// where Strata's tiles would be partly filled. Otherwise cuBLASLt in bf16, with two exceptions: on Hopper up to 32 tokens of weights whose
// tiles fit on the SMs at once, and on all GPUs up to 8 tokens. There Strata's kernels start before the preceding kernel has finished and
// let the next start. e4m3 weights that grouped bf16 activations are multiplied by are packed and read as e4m3.
#include "backends/cuda/linear/impls.h"

#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/linear/operands.h"
#include "core/join.h"

namespace strata::cuda {

std::vector<Implementation<LinearParams>> linear() {
  return {many_and_few_tokens_linear(), many_tokens_linear(), streamed_linear(),        many_tiles_linear(),
          cublaslt_fp8_linear(),        hopper_bf16_linear(), few_tokens_bf16_linear(), cublaslt_bf16_linear()};
}

std::vector<Implementation<GroupedLinearParams>> grouped_linear() {
  return {many_tokens_grouped_linear(), streamed_grouped_linear(),        cublaslt_fp8_one_group(),
          mixed_grouped_linear(),       mixed_many_grouped_linear(),      mixed_many_few_grouped_linear(),
          hopper_bf16_grouped_linear(), few_tokens_bf16_grouped_linear(), cublaslt_bf16_grouped_linear()};
}
std::vector<Implementation<ops::QuantizeRowsParams>> quantize_rows() { return {quantize_rows_smxx()}; }
std::vector<WeightPacking> weight_packings() { return join(mixed_weight_packings(), cublaslt_weight_packings()); }

}  // namespace strata::cuda
