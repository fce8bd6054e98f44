// Batches of shapes without data: what a layer's workspace is measured with.
#pragma once

#include <functional>
#include <vector>

#include "layers/op_runner.h"
#include "strata/attention.h"

namespace strata {

// num_tokens tokens in the largest buffers that the limits allow: the first num_decode_tokens in decode requests, the rest in prefill
// requests, of each kind as many as there may be. The first of a kind has all its tokens, behind max_model_len positions. `groups`: of
// the layer.
Batch planning_batch(DeviceId device, const BatchLimits& limits, const std::vector<CacheGroupSpec>& groups, int64_t window,
                     int64_t num_tokens, int64_t num_decode_tokens);

// Where a cache's pages lie is the caller's choice: in the fewest bytes and evenly, or in more bytes than 32 bits count units of and at
// distances that no vector load divides. An implementation that cannot take the latter leaves them to one that may want another workspace.
enum class CacheGeometry { easy, hard };

// The same for its caches: no data, geometry only.
LayerCaches planning_caches(DeviceId device, const std::vector<CacheGroupSpec>& groups, CacheGeometry geometry);

// The most workspace that run(args, runner) takes within the limits: it is called with shapes only.
int64_t measure_workspace(const AttentionLayer& layer, const std::shared_ptr<Device>& device, const OpSet& ops, const BatchLimits& limits,
                          int64_t window, const SideStreams* side_streams,
                          const std::function<void(const ForwardArgs&, const OpRunner&)>& run);

}  // namespace strata
