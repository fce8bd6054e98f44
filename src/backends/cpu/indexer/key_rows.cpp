#include <algorithm>
#include <cstring>

#include "backends/cpu/indexer/score.h"

namespace strata::cpu::indexer {
namespace {

// As wide as the widest row (bf16). Zero bytes are zeros in every format.
alignas(64) constexpr uint8_t kZeroRow[kDim * 2] = {};

}  // namespace

void find_rows(const PagedCache& cache, const int32_t* pages, int64_t first, int count, int64_t available, KeyBlock& keys) {
  const int64_t row_bytes = row_data_bytes(cache.format, cache.row_dim);
  const int64_t scale_offset = cache.page_size * row_bytes;
  const int known = static_cast<int>(std::min<int64_t>(available - first, count + kLookahead));
  int64_t page = first / cache.page_size;
  int64_t in_page = first % cache.page_size;
  for (int i = 0; i < known; ++page, in_page = 0) {
    const uint8_t* base = static_cast<const uint8_t*>(cache.data) + pages[page] * cache.page_stride;
    const int rows = static_cast<int>(std::min<int64_t>(cache.page_size - in_page, known - i));
    for (int r = 0; r < rows; ++r) keys.row[i + r] = base + (in_page + r) * row_bytes;
    const size_t here = static_cast<size_t>(std::clamp(count - i, 0, rows));
    const uint8_t* scales = base + scale_offset + in_page * 4;
    // Rows that are only prefetched have no slot for a scale.
    if (here > 0 && cache.format == KvFormat::indexer_fp8) std::memcpy(keys.scale + i, scales, here * 4);
    if (here > 0 && cache.format == KvFormat::indexer_mxfp4) std::memcpy(keys.exponents + i, scales, here * 4);
    i += rows;
  }
  if (cache.format != KvFormat::indexer_fp8) std::fill_n(keys.scale, count, 1.0f);
  // After the last row: zeros if the block is short; if it is full, nothing more to prefetch.
  std::fill(keys.row + known, keys.row + kBlockRows + kLookahead, kZeroRow);
  if (count < kBlockRows) {
    std::fill(keys.row + count, keys.row + kBlockRows, kZeroRow);
    std::fill(keys.scale + count, keys.scale + kBlockRows, 0.0f);
    std::fill(keys.exponents + count, keys.exponents + kBlockRows, 0u);
  }
}

}  // namespace strata::cpu::indexer
