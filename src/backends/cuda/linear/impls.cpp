// Linear layers on CUDA. FP8 on Hopper: few tokens, where the weight must be read once and nothing else matters, and many are our kernels',
// whole tiles of many and a few more both of them's, what is between, where our tiles would be partly filled, cuBLASLt's, which has the
// block scales. Elsewhere cuBLASLt in bf16, but on Hopper for up to 32 tokens of weights whose tiles fit on the SMs at once, and for up to
// 8: there our kernels begin before the one in front has ended and let the next begin. e4m3 weights that groups of bf16 activations are
// multiplied by are packed and read as codes.
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
