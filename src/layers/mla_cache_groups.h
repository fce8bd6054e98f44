// The caches of an MLA layer: MLA specification 9 and 11.9.
#pragma once

#include <vector>

#include "strata/attention.h"

namespace strata {

// Throws unsupported for a format that no MLA cache has.
std::vector<CacheGroupSpec> mla_cache_groups(const ModelConfig& config, const LayerOptions& options, int64_t layer);

}  // namespace strata
