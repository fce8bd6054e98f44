#include "batch/group_spec.h"

#include <limits>

#include "core/check.h"

namespace strata {
namespace {

int32_t ratio_of(CacheGroup group) {
  switch (group) {
    case CacheGroup::c4_compressed:
    case CacheGroup::c4_indexer: return 4;
    case CacheGroup::c128_compressed: return 128;
    default: return 1;  // also of state rows, one per position
  }
}

// Positions that the newest token reads, itself included; 0: all.
int64_t reach_of(CacheGroup group, int64_t window) {
  switch (group) {
    case CacheGroup::window: return window;
    case CacheGroup::c4_state:
    case CacheGroup::c4_indexer_state: return 8;  // two overlapping windows of 4
    case CacheGroup::c128_state: return 128;
    default: return 0;
  }
}

}  // namespace

void check_group_spec(const char* owner, const CacheGroupSpec& spec, int64_t window) {
  const auto name = to_string(spec.group);
  require(static_cast<size_t>(spec.group) < kNumCacheGroups, "{}: unknown cache group number {}", owner, static_cast<int>(spec.group));
  require(spec.page_size > 0, "{}: {}.page_size must be positive, is {}", owner, name, spec.page_size);
  require(spec.ratio == ratio_of(spec.group), "{}: {}.ratio must be {}, is {}", owner, name, ratio_of(spec.group), spec.ratio);
  require(spec.retained >= 0 && spec.retained <= std::numeric_limits<int32_t>::max(), "{}: {}.retained must be in [0, 2^31), is {}", owner,
          name, spec.retained);
  require(spec.num_query_heads >= 0, "{}: {}.num_query_heads must not be negative, is {}", owner, name, spec.num_query_heads);
  if (spec.retained > 0) {
    const int64_t reach = reach_of(spec.group, window);
    require(reach > 0, "{}: {}.retained must be 0 (every position is read), is {}", owner, name, spec.retained);
    require(spec.retained >= reach, "{}: {}.retained must be 0 or at least {}, is {}", owner, name, reach, spec.retained);
  }
}

}  // namespace strata
