// Checks the requests of a step before anything is written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "batch/request_name.h"
#include "strata/batch.h"

namespace strata {

struct StepSizes {
  int64_t num_tokens = 0;  // padding included
  int64_t num_actual_tokens = 0;
  int64_t num_requests = 0;       // padding included
  int64_t uniform_query_len = 0;  // tokens per request of a uniform step; 0: not uniform
  int64_t max_seq_len = 0;
};

// The caller's id, or else the pool's; -1: none.
int64_t id_of(const BatchRequest& request);
inline RequestName name_of(size_t number, const BatchRequest& request) { return {static_cast<int64_t>(number), id_of(request)}; }

// Throws invalid_argument naming the request and the field. `num_pages[i]` bounds the pages of groups[i].
StepSizes check_requests(std::span<const BatchRequest> requests, BatchPadding padding, const BatchLimits& limits,
                         std::span<const CacheGroupSpec> groups, std::span<const int64_t> num_pages);

// Checks the limits, at construction.
void check_limits(const BatchLimits& limits);

// Decode tokens that a step within the limits may have.
inline int64_t most_decode_tokens(const BatchLimits& limits) {
  return std::min(limits.max_num_batched_tokens, limits.max_num_seqs * (int64_t{1} + limits.num_speculative_tokens));
}

}  // namespace strata
