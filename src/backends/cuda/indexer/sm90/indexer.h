// Hopper's kernels of the indexer. Launchers as in indexer/indexer.h.
#pragma once

#include <string>

#include "backends/cuda/indexer/indexer.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda::sm90 {

// For both IndexerLogits and IndexerTopk. Pointers that are not aligned at run time are left to the portable kernel.
Support supports_scoring(const TensorView& q, const PagedCache& cache, const Capabilities& c);

// The logits kernels: one token; fewer than two tokens per request; more tokens, or more than 64 heads.
enum class LogitsKernel : uint8_t { one_token, decode, prefill };
// The kernel that suits a call.
LogitsKernel logits_kernel(int64_t num_heads, int64_t num_tokens, int64_t num_requests);
// Why a kernel cannot run a call; empty if it can.
std::string refusal(LogitsKernel kernel, int64_t num_heads, int64_t num_tokens);
bool launch_indexer_logits(LogitsKernel kernel, const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints,
                           const ExecutionContext& context);
// Launches the kernel that suits the call.
bool launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints, const ExecutionContext& context);

// The selection kernels: one row with candidates (select_candidates.cuh), few short rows (select_few_rows.cuh), few rows with long bounds
// (select_by_length.cuh), rows that registers hold (select_held.cuh), longer rows in passes (select.cuh).
enum class SelectKernel : uint8_t { candidates, few_rows, by_length, held, passes };
// The kernel that suits a call of TopkSelect, and why a kernel cannot run the call; empty if it can. Rows are as aligned as their stride.
SelectKernel select_kernel(const TopkSelectParams& p, const Capabilities& c);
std::string refusal(SelectKernel kernel, const TopkSelectParams& p, const Capabilities& c);
void launch_topk_select(SelectKernel kernel, const TopkSelectParams& p, const ExecutionContext& context);
// Launches the kernel that suits the call and the notes of the logits kernel.
void launch_topk_select(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context);

}  // namespace strata::cuda::sm90
