// Batches with shapes and without data, for measuring a layer's workspace.
#pragma once

#include <functional>
#include <vector>

#include "layers/op_runner.h"
#include "strata/attention.h"

namespace strata {

// num_tokens tokens in the largest buffers that the limits allow: the first num_decode_tokens in decode requests, the rest in prefill
// requests. Each kind has as many requests as possible. The first request of a kind has all its tokens, after max_model_len positions.
// `groups`: those of the layer.
Batch planning_batch(DeviceId device, const BatchLimits& limits, const std::vector<CacheGroupSpec>& groups, int64_t window,
                     int64_t num_tokens, int64_t num_decode_tokens);

// Two extremes of the caller's page layout. easy: pages in the fewest bytes at even distances. hard: more bytes than 32 bits can count
// units of, at distances that no vector load divides. An implementation that refuses `hard` leaves the call to another one, which may need
// another workspace.
enum class CacheGeometry { easy, hard };

// Caches of a layer: geometry without data.
LayerCaches planning_caches(DeviceId device, const std::vector<CacheGroupSpec>& groups, CacheGeometry geometry);

// The largest workspace that run(args, runner) needs within the limits; run is called with shapes only.
int64_t measure_workspace(const AttentionLayer& layer, const std::shared_ptr<Device>& device, const OpSet& ops, const BatchLimits& limits,
                          int64_t window, const SideStreams* side_streams,
                          const std::function<void(const ForwardArgs&, const OpRunner&)>& run);

}  // namespace strata
