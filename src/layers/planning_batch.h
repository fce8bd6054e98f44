// Batches of shapes without data: what a layer's workspace is measured with.
#pragma once

#include <functional>
#include <vector>

#include "layers/op_runner.h"
#include "strata/attention.h"

namespace strata {

// num_tokens tokens in the largest buffers that the limits allow: the first num_decode_tokens in decode requests, the rest in one
// prefill request. The host's lengths give one request of each part max_model_len positions before its tokens. `groups`: of the layer.
Batch planning_batch(DeviceId device, const BatchLimits& limits, const std::vector<CacheGroupSpec>& groups, int64_t window,
                     int64_t num_tokens, int64_t num_decode_tokens);

// The same for its caches: no data, geometry only.
LayerCaches planning_caches(DeviceId device, const std::vector<CacheGroupSpec>& groups);

// The most workspace that run(args, runner) takes within the limits: it is called with shapes only.
size_t measure_workspace(const AttentionLayer& layer, const std::shared_ptr<Device>& device, const OpSet& ops, const BatchLimits& limits,
                         int64_t window, Lanes* lanes, const std::function<void(const ForwardArgs&, OpRunner&)>& run);

}  // namespace strata
