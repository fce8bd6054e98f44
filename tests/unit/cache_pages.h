// A paged cache in host memory whose every byte is NaN in every format until a row is stored.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/kv_rows.h"

namespace strata::test {

class CachePages {
 public:
  // padding: bytes between the payload of a page and the next page.
  CachePages(KvFormat format, int32_t row_dim, int32_t page_size, int64_t num_pages, int64_t padding = 0) {
    cache_.format = format;
    cache_.row_dim = row_dim;
    cache_.page_size = page_size;
    cache_.num_pages = num_pages;
    cache_.page_stride = page_payload_bytes(format, row_dim, page_size) + padding;
    bytes_.assign(static_cast<size_t>(num_pages * cache_.page_stride), 0xFF);
  }

  operator PagedCache() { return view(); }
  PagedCache view() {
    PagedCache c = cache_;
    c.data = bytes_.data();
    return c;
  }
  void set_scale(float scale) { cache_.scale = scale; }
  void store(int64_t slot, const std::vector<float>& row) { store_row(view(), slot, row.data()); }
  std::vector<float> load(int64_t slot) {
    std::vector<float> row(static_cast<size_t>(cache_.row_dim));
    load_row(view(), slot, row.data());
    return row;
  }

 private:
  PagedCache cache_{};
  std::vector<uint8_t> bytes_;
};

}  // namespace strata::test
