// The queries and keys of a group of dense_attn_prefill.
#pragma once

#include "backends/opencl/dense_attn_prefill/call.h"
#include "backends/opencl/device/memory.h"

namespace strata::opencl {

// The queries of a group and the keys of their request.
struct QueryTile {
  int64_t first_query, first_key;
  int num_queries;  // in this tile
  int keys;         // that the last query of the tile sees
  int first_keys;   // that the first query sees; if causal, each further query sees one more
};

inline int64_t slot_of(const __global int32_t* start, int request) {
  return ((int64_t)start[request] - start[0]) / kPrefillQueries + request;
}

// Request b has the slots from slot_of(b) on. It has at least as many slots as tiles; spare slots have no queries.
inline QueryTile tile_of(const DenseAttnPrefillCall& call, int slot) {
  int64_t first_query = 0, first_key = 0, n = call.num_queries, m = call.num_keys, tile = slot;
  if (call.query_start != 0) {
    const __global int32_t* queries = at<const int32_t>(call.query_start);
    const __global int32_t* keys = at<const int32_t>(call.key_start);
    int low = 0, high = call.num_requests - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (slot_of(queries, middle) <= slot) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    tile = slot - slot_of(queries, low);
    first_query = (int64_t)queries[low] - queries[0], n = (int64_t)queries[low + 1] - queries[low];
    first_key = (int64_t)keys[low] - keys[0], m = (int64_t)keys[low + 1] - keys[low];
  }
  const int64_t begin = tile * kPrefillQueries;
  const int count = (int)clamp(n - begin, (int64_t)0, (int64_t)kPrefillQueries);
  const int64_t first_keys = call.is_causal ? m - n + begin + 1 : m;
  const int64_t keys = count == 0 ? 0 : call.is_causal ? max((int64_t)0, first_keys + count - 1) : m;
  return {first_query + begin, first_key, count, (int)keys, (int)first_keys};
}

}  // namespace strata::opencl
