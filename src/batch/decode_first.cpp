#include <algorithm>
#include <numeric>

#include "strata/batch.h"

namespace strata {

std::vector<int64_t> decode_first_order(std::span<const BatchRequest> requests, int32_t num_speculative_tokens) {
  std::vector<int64_t> order(requests.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_partition(order.begin(), order.end(),
                        [&](int64_t i) { return requests[static_cast<size_t>(i)].query_len <= int64_t{1} + num_speculative_tokens; });
  return order;
}

}  // namespace strata
