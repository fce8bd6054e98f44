// A batch of shapes without data: what a layer's workspace is measured with.
#pragma once

#include <vector>

#include "strata/batch.h"

namespace strata {

enum class BatchPart { decode, prefill };

// num_tokens tokens, all decode or all prefill, in the largest buffers that the limits allow. `groups`: of the layer.
Batch planning_batch(DeviceId device, const BatchLimits& limits, const std::vector<CacheGroupSpec>& groups, int64_t window,
                     int64_t num_tokens, BatchPart part);

// The same for its caches: no data, geometry only.
LayerCaches planning_caches(DeviceId device, const std::vector<CacheGroupSpec>& groups);

}  // namespace strata
