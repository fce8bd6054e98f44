// Bounds of the decode requests' lengths, with which their attention is planned.
#pragma once

#include <algorithm>

#include "strata/batch.h"

namespace strata {

struct DecodeBounds {
  int64_t query_len = 0, seq_len = 0;
};

// Decode requests in a step with prompts have their own bounds. A prompt's bounds would cut each of them into only as many splits as a
// prompt's many tokens need.
inline DecodeBounds decode_bounds(const Batch& batch) {
  if (batch.num_decodes == batch.num_requests) return {batch.max_query_len, batch.max_seq_len};
  const auto first = batch.seq_lens_host.begin();
  const int64_t seq_len = batch.num_decodes > 0 ? *std::max_element(first, first + batch.num_decodes) : 0;
  return {.query_len = std::min<int64_t>(batch.max_query_len, int64_t{1} + batch.limits.num_speculative_tokens),
          .seq_len = std::min(batch.max_seq_len, seq_len)};
}

}  // namespace strata
