// A paged cache as a kernel argument, for host and device code.
#pragma once

#include <cstdint>

namespace strata::opencl {

struct CacheView {
  uint64_t data;
  int64_t num_pages, page_stride;
  int32_t page_size, row_dim;
  float scale;
  int32_t format;  // KvFormat
};

}  // namespace strata::opencl
