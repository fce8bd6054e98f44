// Converts index entries to row addresses. Entries that name no row are dropped here, so that the kernels see a dense list of readable
// rows, and no product with zero has to hide a row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attend.h"

namespace strata::cpu {

struct RowRef {
  const std::byte* data;
  const std::byte* scales;  // fp8_ds_mla_v4: the row's 8 scale bytes at the end of its page; else null
};

inline constexpr int kBlockRows = 640;  // most rows of a block; why this many: see pipeline_avx512.h

// The rows of one block: those of scope 0 first.
struct BlockRows {
  int count = 0;
  int scope0_count = 0;
  RowRef row[kBlockRows];
};

inline std::int64_t total_entries(const AttendShape& shape, const AttendQuery& query) {
  std::int64_t n = 0;
  for (int s = 0; s < shape.num_scopes; ++s) n += std::max<std::int64_t>(query.keys[s].count, 0);
  return n;
}

// Appends the valid rows among entries [begin, end) of one scope.
inline void append_rows(const RowSource& src, const KeyList& keys, std::int64_t begin, std::int64_t end, BlockRows& block) {
  const bool paged = src.page_size > 0;
  const bool v4 = src.format == KvFormat::fp8_ds_mla_v4;
  const std::int64_t row_stride = v4 ? 576 : src.row_stride;
  const auto limit = static_cast<std::uint64_t>(src.num_rows);
  for (std::int64_t e = begin; e < end; ++e) {
    const std::int64_t index = keys.indices ? keys.indices[e] : e;
    if (index < 0) continue;
    std::uint64_t page = 0, slot = static_cast<std::uint64_t>(index);
    if (paged) {
      // 32-bit unsigned division is several times cheaper than 64-bit; indices, lengths and page sizes come as int32.
      const auto i = static_cast<std::uint32_t>(index), size = static_cast<std::uint32_t>(src.page_size);
      page = i / size;
      slot = i % size;
      if (keys.block_table) {
        if (page >= static_cast<std::uint64_t>(keys.block_table_len) || keys.block_table[page] < 0) continue;
        page = static_cast<std::uint64_t>(keys.block_table[page]);
      }
      if (page * static_cast<std::uint64_t>(src.page_size) + slot >= limit) continue;
    } else if (slot >= limit) {
      continue;
    }
    const std::byte* page_base = src.base + page * static_cast<std::uint64_t>(src.page_stride);
    RowRef& r = block.row[block.count++];
    r.data = page_base + slot * static_cast<std::uint64_t>(row_stride);
    r.scales = v4 ? page_base + static_cast<std::uint64_t>(src.page_size) * 576 + slot * 8 : nullptr;
  }
}

// The rows of entries [begin, end) of the concatenated lists, at most kBlockRows of them.
inline void collect_block(const AttendShape& shape, const AttendQuery& query, std::int64_t begin, std::int64_t end, BlockRows& block) {
  block.count = block.scope0_count = 0;
  std::int64_t offset = 0;  // first entry of the scope in the concatenation
  for (int s = 0; s < shape.num_scopes; ++s) {
    const std::int64_t n = std::max<std::int64_t>(query.keys[s].count, 0);
    const std::int64_t b = std::clamp<std::int64_t>(begin - offset, 0, n);
    const std::int64_t e = std::clamp<std::int64_t>(end - offset, 0, n);
    append_rows(shape.source[s], query.keys[s], b, e, block);
    if (s == 0) block.scope0_count = block.count;
    offset += n;
  }
}

}  // namespace strata::cpu
