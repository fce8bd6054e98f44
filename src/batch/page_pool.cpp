#include <algorithm>
#include <functional>
#include <limits>

#include "core/check.h"
#include "strata/paged_pool.h"

namespace strata {

PagePool::PagePool(int64_t num_pages) {
  require(num_pages >= 0 && num_pages <= std::numeric_limits<int32_t>::max(), "page pool: num_pages must be in [0, 2^31), is {}",
          num_pages);
  free_.resize(static_cast<size_t>(num_pages));
  // Ascending order is a valid min-heap.
  for (size_t i = 0; i < free_.size(); ++i) free_[i] = static_cast<int32_t>(i);
  holders_.assign(free_.size(), 0);
}

int32_t PagePool::allocate() {
  if (free_.empty()) return -1;
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t page = free_.back();
  free_.pop_back();
  holders_[static_cast<size_t>(page)] = 1;
  return page;
}

int32_t PagePool::holders(int32_t page) const {
  require(page >= 0 && page < num_pages(), "page pool: a page must be in [0, {}), is {}", num_pages(), page);
  return holders_[static_cast<size_t>(page)];
}

int32_t& PagePool::holders_of(const char* what, int32_t page) {
  require(page >= 0 && page < num_pages(), "page pool: a {} page must be in [0, {}), is {}", what, num_pages(), page);
  int32_t& holders = holders_[static_cast<size_t>(page)];
  require(holders > 0, "page pool: a {} page must be allocated, page {} is free", what, page);
  return holders;
}

void PagePool::share(int32_t page) { ++holders_of("shared", page); }

bool PagePool::release(int32_t page) {
  if (--holders_of("released", page) > 0) return false;
  free_.push_back(page);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
  return true;
}

}  // namespace strata
