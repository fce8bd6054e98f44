// Launchers of indexer_logits and topk_select, which indexer_topk uses too.
#pragma once

#include "backends/opencl/runtime/implementation.h"
#include "strata/ops/indexer.h"

namespace strata::opencl {

// Logits of tokens with at most `skip` candidates are not written.
void launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, Variant variant, const ExecutionContext& context);
// The same on the matrix engine, for keys that supports_matrix_logits accepts.
void launch_matrix_logits(const IndexerLogitsParams& p, int32_t skip, Variant variant, const ExecutionContext& context);
// Whether the matrix engine can score the keys.
Support supports_matrix_logits(const PagedCache& keys);
// The logits may be absent if no row is longer than k.
void launch_topk_select(const TopkSelectParams& p, Variant variant, const ExecutionContext& context);

// Whether a kernel can select k entries.
inline Support supports_selection(int64_t k) { return k < (int64_t{1} << 31) ? Support::yes() : Support::no("needs k below 2^31"); }

}  // namespace strata::opencl
