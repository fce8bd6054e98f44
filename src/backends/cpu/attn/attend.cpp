// Dispatch by path, and the block plan.
#include "attend.h"

#include "paths.h"
#include "rows.h"

namespace strata::cpu {
namespace {

const PathFunctions& functions(AttendPath path) {
  switch (path) {
#if defined(__x86_64__)
    case AttendPath::amx: return kAmxPath;
    case AttendPath::avx512_bf16: return kAvx512Bf16Path;
#endif
    case AttendPath::avx512: return kAvx512Path;
    case AttendPath::avx2: return kAvx2Path;
    default: return kPortablePath;
  }
}

}  // namespace

// Blocks of equal size, whole sub-blocks of 32 rows, none larger than kBlockRows.
std::int64_t attend_block_entries(std::int64_t num_entries) {
  if (num_entries <= 0) return kBlockRows;
  const std::int64_t blocks = (num_entries + kBlockRows - 1) / kBlockRows;
  return ((num_entries + blocks - 1) / blocks + 31) / 32 * 32;
}
std::int64_t attend_num_blocks(std::int64_t num_entries) {
  if (num_entries <= 0) return 0;
  const std::int64_t step = attend_block_entries(num_entries);
  return (num_entries + step - 1) / step;
}

std::size_t attend_partial_bytes(int num_heads, int value_dim) {
  return static_cast<std::size_t>(padded_heads(num_heads)) * (2 + static_cast<std::size_t>(value_dim)) * 4;
}

std::size_t attend_scratch_bytes(AttendPath path, const AttendShape& shape, int num_heads) {
  return functions(path).scratch_bytes(shape, num_heads) + attend_partial_bytes(num_heads, shape.value_dim);
}

void attend_partial(AttendPath path, const AttendShape& shape, const AttendQuery& query, HeadRange heads, std::int64_t block_begin,
                    std::int64_t block_end, std::byte* scratch, float* partial) {
  functions(path).accumulate(shape, query, heads, block_begin, block_end, scratch, partial_view(partial, heads.count));
}

void combine_partial(AttendPath path, int num_heads, int value_dim, float* into, const float* from) {
  functions(path).combine(num_heads, value_dim, partial_view(into, num_heads), partial_view(const_cast<float*>(from), num_heads));
}

void finish_partial(AttendPath path, const AttendShape& shape, const AttendQuery& query, HeadRange heads, const float* partial) {
  functions(path).finish(shape, query, heads, partial_view(const_cast<float*>(partial), heads.count));
}

void attend(AttendPath path, const AttendShape& shape, const AttendQuery& query, HeadRange heads, std::byte* scratch) {
  auto* partial = reinterpret_cast<float*>(scratch + functions(path).scratch_bytes(shape, heads.count));
  const std::int64_t blocks = attend_num_blocks(total_entries(shape, query));
  attend_partial(path, shape, query, heads, 0, blocks, scratch, partial);
  finish_partial(path, shape, query, heads, partial);
}

}  // namespace strata::cpu
