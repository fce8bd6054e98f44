// Hopper's kernels of the indexer. Launchers as indexer/indexer.h has them.
#pragma once

#include <string>

#include "backends/cuda/indexer/indexer.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda::sm90 {

// Of IndexerLogits and IndexerTopk alike. Pointers that turn out not to be aligned at run time are left to the portable kernel.
Support supports_scoring(const TensorView& q, const PagedCache& cache, const Capabilities& c);

// The kernels of the logits: one token; fewer than two tokens a request; more, or more than 64 heads.
enum class LogitsKernel : uint8_t { one_token, decode, prefill };
// The one that a call should have.
LogitsKernel logits_kernel(int64_t num_heads, int64_t num_tokens, int64_t num_requests);
// Why a kernel cannot run a call; empty if it can.
std::string refusal(LogitsKernel kernel, int64_t num_heads, int64_t num_tokens);
bool launch_indexer_logits(LogitsKernel kernel, const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints,
                           const ExecutionContext& context);
// By the one that the call should have.
bool launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints, const ExecutionContext& context);

// The kernels of the selection: one row with candidates (select_candidates.cuh), few short rows (select_few_rows.cuh), few rows of long
// bounds (select_by_length.cuh), rows that registers hold (select_held.cuh), longer ones in passes (select.cuh).
enum class SelectKernel : uint8_t { candidates, few_rows, by_length, held, passes };
// The one that a call of TopkSelect should have, and why one cannot run it; empty if it can. The rows begin as aligned as their distance.
SelectKernel select_kernel(const TopkSelectParams& p, const Capabilities& c);
std::string refusal(SelectKernel kernel, const TopkSelectParams& p, const Capabilities& c);
void launch_topk_select(SelectKernel kernel, const TopkSelectParams& p, const ExecutionContext& context);
// By the one that the call, with what the logits' kernel left for it, should have.
void launch_topk_select(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context);

}  // namespace strata::cuda::sm90
