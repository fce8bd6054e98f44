// How prefill tokens read their keys: from the pages, or from rows that are gathered before.
#pragma once

#include "ops/sparse_attention/prefill_choice.h"
#include "strata/attention.h"

namespace strata {

// LayerOptions::prefill_mode; where that is automatic, by the device's measured rule. Batch-invariant layers never look at the rule: the
// two ways round differently, and the rule depends on the whole step. They gather in V4, and read the pages in MLA.
bool prefill_reads_pages(const LayerOptions& options, const PrefillWork& work, const Device& device);

}  // namespace strata
