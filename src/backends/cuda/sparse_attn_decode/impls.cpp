// The list of sparse_attn_decode.
#include "backends/cuda/sparse_attn_decode/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode() {
  using sparse_decode::Kernel;
  const sparse_decode::Planner planner;
  // The planner (sm90/plan.h) prefers one kernel for a call without a schedule, by fitted costs.
  return {
      sparse_attn_decode_sm90_scheduled(/*few_heads=*/true, planner),
      sparse_attn_decode_sm90_scheduled(/*few_heads=*/false, planner),
      sparse_attn_decode_sm90(Kernel::persistent, planner),          // 8 or 16 heads per CTA, more than two waves of CTAs
      sparse_attn_decode_sm90(Kernel::few_heads_clusters, planner),  // few tokens: the splits of a token are a cluster
      sparse_attn_decode_sm90(Kernel::few_heads, planner),           // up to 32 heads per CTA
      sparse_attn_decode_sm90(Kernel::h64_clusters, planner),        // two or three splits, all of which run at once
      sparse_attn_decode_sm90(Kernel::h64, planner),                 // many tokens of many heads
      sparse_attn_decode_bf16_sm90(),
      sparse_attn_decode_smxx(),
      sparse_attn_decode_generic(),
  };
}

}  // namespace strata::cuda
