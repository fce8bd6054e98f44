#include <algorithm>
#include <functional>
#include <limits>

#include "core/check.h"
#include "strata/cache.h"

namespace strata {

PagePool::PagePool(int64_t num_pages) : num_pages_(num_pages) {
  require(num_pages >= 0 && num_pages <= std::numeric_limits<int32_t>::max(), "page pool: num_pages must be in [0, 2^31), is {}",
          num_pages);
  free_.resize(static_cast<size_t>(num_pages));
  // Ascending order is a heap with the smallest on top.
  for (size_t i = 0; i < free_.size(); ++i) free_[i] = static_cast<int32_t>(i);
  allocated_.assign(free_.size(), false);
}

int32_t PagePool::allocate() {
  if (free_.empty()) return -1;
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t page = free_.back();
  free_.pop_back();
  allocated_[static_cast<size_t>(page)] = true;
  return page;
}

void PagePool::release(int32_t page) {
  require(page >= 0 && page < num_pages_, "page pool: a released page must be in [0, {}), is {}", num_pages_, page);
  require(allocated_[static_cast<size_t>(page)], "page pool: a released page must be allocated, page {} is free", page);
  allocated_[static_cast<size_t>(page)] = false;
  free_.push_back(page);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

}  // namespace strata
