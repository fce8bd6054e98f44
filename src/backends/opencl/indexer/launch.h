// The launchers that indexer_topk shares.
#pragma once

#include "backends/opencl/runtime/implementation.h"
#include "strata/ops/indexer.h"

namespace strata::opencl {

// Logits of tokens of at most `skip` candidates are not written.
void launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, Variant variant, const ExecutionContext& context);
// The same on the matrix engine, with keys of which supports_matrix_logits is true.
void launch_matrix_logits(const IndexerLogitsParams& p, int32_t skip, Variant variant, const ExecutionContext& context);
// Why that cannot take keys.
Support supports_matrix_logits(const PagedCache& keys);
// No row longer than k: the logits may be absent.
void launch_topk_select(const TopkSelectParams& p, Variant variant, const ExecutionContext& context);

// Why a kernel cannot select k entries.
inline Support supports_selection(int64_t k) { return k < (int64_t{1} << 31) ? Support::yes() : Support::no("needs k below 2^31"); }

}  // namespace strata::opencl
