// A cache group's geometry applied to a request: which blocks of its table a step addresses.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ceil_div.h"
#include "strata/cache.h"

namespace strata {

// Blocks [begin, end) of a table.
struct BlockRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return std::max<int64_t>(end - begin, 0); }
};

// Blocks that the step reads or writes. Only rows of complete entries count, so a compressed group needs no page for entries that are not
// complete. The oldest position is the one that the first new token reads back to: `retained` positions, including itself.
inline BlockRange addressed_blocks(const CacheGroupSpec& spec, int64_t query_len, int64_t seq_len) {
  const int64_t oldest = spec.retained > 0 ? std::max<int64_t>(0, seq_len - query_len - spec.retained + 1) : 0;
  return {oldest / spec.positions_per_page(), ceil_div(seq_len / spec.ratio, spec.page_size)};
}

// Throws invalid_argument naming `owner` and the group: for impossible rows and positions, and for groups that keep less than the V4 layers
// read back (a window of `window` positions, coff * ratio rows of compressor state).
void check_group_spec(const char* owner, const CacheGroupSpec& spec, int64_t window);

}  // namespace strata
