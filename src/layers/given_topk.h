// Converts a top-k given by the caller or an earlier layer to slots of a layer's cache: V4 specification 12.3, MLA specification 11.
#pragma once

#include "layers/op_runner.h"

namespace strata {

// Writes slots, i32 [N, K], and lens, i32 [N], for the first N rows of topk_indices, in the cache of `group`. Does nothing for N = 0.
inline void find_topk_slots(const OpRunner& run, const Batch& batch, CacheGroup group, const TensorView& topk_indices,
                            const TensorView& slots, const TensorView& lens) {
  const int64_t count = lens.shape[0];
  if (count == 0) return;
  const GroupMetadata& of_group = batch[group];
  run(run.ops.compute_global_topk, ComputeGlobalTopkParams{.topk_indices = topk_indices.slice(0, count),
                                                           .token_to_req = batch.token_to_req.slice(0, count),
                                                           .is_valid_token = batch.is_valid_token.slice(0, count),
                                                           .block_table = of_group.block_table,
                                                           .page_size = of_group.spec.page_size,
                                                           .global_indices = slots,
                                                           .lens = lens});
}

}  // namespace strata
