// The portable kernels of the indexer: what their launchers and those of sm90/indexer share.
#pragma once

#include <cstdint>

#include "strata/op.h"
#include "strata/ops/indexer.h"

namespace strata::cuda {

// Writes the logits of tokens with more than `skip` candidates. Where nobody looks at the others (a selection of `skip` entries takes
// all of theirs) they need not be computed; IndexerLogits has 0.
using LogitsLauncher = void (*)(const IndexerLogitsParams& p, int32_t skip, const ExecutionContext& context);
// p.logits may be absent where no length exceeds k. behind_logits: a LogitsLauncher of the same backend was enqueued just before.
using SelectLauncher = void (*)(const TopkSelectParams& p, bool behind_logits, const ExecutionContext& context);

namespace smxx {
void launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, const ExecutionContext& context);
void launch_topk_select(const TopkSelectParams& p, bool behind_logits, const ExecutionContext& context);
}  // namespace smxx

}  // namespace strata::cuda
