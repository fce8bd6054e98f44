// Dispatch by path, block plan, and what the machine can run.
#include "attend.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "paths.h"
#include "rows.h"

namespace strata::cpu {
namespace {

const PathFunctions& functions(AttendPath path) {
#if defined(__x86_64__)
  if (path == AttendPath::amx) return kAmxPath;
  if (path == AttendPath::avx512_bf16) return kAvx512Bf16Path;
#endif
  return kSimdPath;
}

struct CpuidLeaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
CpuidLeaf cpuid(unsigned leaf, unsigned sub) {
  CpuidLeaf r;
  if (!__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d)) return {};
  return r;
}
bool bit(unsigned word, int i) { return (word >> i) & 1; }

// The operating system saves these register states (XCR0).
bool os_saves(unsigned mask) {
  if (!bit(cpuid(1, 0).c, 27)) return false;  // OSXSAVE
  unsigned lo = 0, hi = 0;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (lo & mask) == mask;
}

bool detect_avx512_bf16() {
  const CpuidLeaf f = cpuid(7, 0), g = cpuid(7, 1);
  return os_saves(0xE6) && bit(f.b, 5) && bit(f.b, 16) && bit(f.b, 17) && bit(f.b, 30) && bit(f.b, 31) &&
         bit(f.c, 1) && bit(g.a, 5);  // AVX2, AVX512 F DQ BW VL VBMI BF16
}

bool detect_amx() {
  const CpuidLeaf f = cpuid(7, 0);
  if (!detect_avx512_bf16() || !bit(f.d, 22) || !bit(f.d, 24) || !os_saves(0x60000)) return false;
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;  // asked once per process; threads inherit it
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

}  // namespace

bool avx512_bf16_usable() {
  static const bool usable = detect_avx512_bf16();
  return usable;
}
bool amx_usable() {
  static const bool usable = detect_amx();
  return usable;
}
AttendPath best_attend_path() {
  return amx_usable() ? AttendPath::amx : avx512_bf16_usable() ? AttendPath::avx512_bf16 : AttendPath::simd;
}

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

void attend_partial(AttendPath path, const AttendShape& shape, const AttendQuery& query, HeadRange heads,
                    std::int64_t block_begin, std::int64_t block_end, std::byte* scratch, float* partial) {
  functions(path).accumulate(shape, query, heads, block_begin, block_end, scratch, partial_view(partial, heads.count));
}

void merge_partial(AttendPath path, int num_heads, int value_dim, float* into, const float* from) {
  functions(path).merge(num_heads, value_dim, partial_view(into, num_heads),
                        partial_view(const_cast<float*>(from), num_heads));
}

void finish_partial(AttendPath path, const AttendShape& shape, const AttendQuery& query, HeadRange heads,
                    const float* partial) {
  functions(path).finish(shape, query, heads, partial_view(const_cast<float*>(partial), heads.count));
}

void attend(AttendPath path, const AttendShape& shape, const AttendQuery& query, HeadRange heads, std::byte* scratch) {
  auto* partial = reinterpret_cast<float*>(scratch + functions(path).scratch_bytes(shape, heads.count));
  const std::int64_t blocks = attend_num_blocks(total_entries(shape, query));
  attend_partial(path, shape, query, heads, 0, blocks, scratch, partial);
  finish_partial(path, shape, query, heads, partial);
}

}  // namespace strata::cpu
