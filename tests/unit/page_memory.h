// The raw memory of a paged cache: for tests that look at its bytes.
#pragma once

#include <string>

#include "formats/kv_rows.h"
#include "op_test.h"

namespace strata::test {

// Pages of 0xA5 bytes with `padding` more bytes than the payload.
struct PageMemory {
  PageMemory(KvFormat format, int32_t row_dim, int32_t page_size, int64_t num_pages, int64_t padding)
      : memory({num_pages * (page_payload_bytes(format, row_dim, page_size) + padding)}) {
    cache = {.data = memory.values().data(),
             .format = format,
             .row_dim = row_dim,
             .page_size = page_size,
             .num_pages = num_pages,
             .page_stride = page_payload_bytes(format, row_dim, page_size) + padding};
  }
  PageMemory(const PageMemory&) = delete;

  std::string bytes() const { return memory.bytes(); }
  uint8_t byte(int64_t offset) const { return memory.values()[static_cast<size_t>(offset)]; }
  std::vector<float> row(int64_t slot) const {
    std::vector<float> values(static_cast<size_t>(cache.row_dim));
    load_row(cache, slot, values.data());
    return values;
  }

  Array<uint8_t> memory;
  PagedCache cache;
};

}  // namespace strata::test
