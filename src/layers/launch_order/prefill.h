// Selects how prefill tokens read their keys: from the pages, or from gathered rows.
#pragma once

#include "ops/sparse_attention/prefill_choice.h"
#include "strata/attention.h"

namespace strata {

// LayerOptions::prefill_mode; if automatic, the rule measured on the device. Batch-invariant layers never use the rule, because the modes
// round differently and the rule depends on the whole step. They gather in V4, and read the pages in MLA.
bool prefill_reads_pages(const LayerOptions& options, const PrefillWork& work, const Device& device);

}  // namespace strata
