// The caches of a V4 layer: V4 specification 6 and 9.2.
#pragma once

#include <vector>

#include "strata/attention.h"

namespace strata {

// Throws unsupported for a format that no V4 cache has.
std::vector<CacheGroupSpec> v4_cache_groups(const ModelConfig& config, const LayerOptions& options, int32_t ratio);

}  // namespace strata
