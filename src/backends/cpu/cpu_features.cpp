#include "backends/cpu/cpu_features.h"

#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace strata::cpu {

#if defined(__x86_64__)
namespace {

struct CpuidLeaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
CpuidLeaf cpuid(unsigned leaf, unsigned sub) {
  CpuidLeaf r;
  if (!__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d)) return {};
  return r;
}
bool has(unsigned word, std::initializer_list<int> bits) {
  for (int i : bits) {
    if (((word >> i) & 1) == 0) return false;
  }
  return true;
}

// The operating system saves these register states (XCR0).
bool os_saves(unsigned mask) {
  if (!has(cpuid(1, 0).c, {27})) return false;  // OSXSAVE
  unsigned lo = 0, hi = 0;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (lo & mask) == mask;
}

CpuIsa detect() {
  constexpr unsigned kAvxState = 0x6, kAvx512State = 0xE6, kTileState = 0x60000;
  const CpuidLeaf leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0), leaf7_1 = cpuid(7, 1);
  if (!os_saves(kAvxState) || !has(leaf1.c, {12 /* FMA */, 29 /* F16C */}) || !has(leaf7.b, {3, 5, 8 /* BMI1, AVX2, BMI2 */})) {
    return CpuIsa::portable;
  }
  if (!os_saves(kAvx512State) || !has(leaf7.b, {16, 17, 28, 30, 31 /* AVX-512 F, DQ, CD, BW, VL */})) return CpuIsa::avx2;
  // All that avx512_target.h enables: the compiler may use any of it in any of those files.
  if (!has(leaf7.c, {1, 6, 8 /* VBMI, VBMI2, GFNI */}) || !has(leaf7_1.a, {5 /* AVX512_BF16 */})) return CpuIsa::avx512;
  if (!os_saves(kTileState) || !has(leaf7.d, {22, 24 /* AMX-BF16, AMX-TILE */})) return CpuIsa::avx512_bf16;
  // Linux gives a process the tile state only when it asks: arch_prctl ARCH_REQ_XCOMP_PERM, feature 18 (XTILEDATA). Threads inherit it.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? CpuIsa::amx : CpuIsa::avx512_bf16;
}

// 48 characters in three leaves, padded with spaces and zeros.
std::string brand() {
  constexpr unsigned kFirst = 0x80000002, kLeaves = 3;
  char text[kLeaves * sizeof(CpuidLeaf) + 1] = {};
  for (unsigned i = 0; i < kLeaves; ++i) {
    const CpuidLeaf leaf = cpuid(kFirst + i, 0);
    std::memcpy(text + i * sizeof(leaf), &leaf, sizeof(leaf));
  }
  const std::string name(text);
  const size_t begin = name.find_first_not_of(' '), end = name.find_last_not_of(' ');
  return begin == std::string::npos ? "" : name.substr(begin, end - begin + 1);
}

}  // namespace

CpuIsa machine_isa() {
  static const CpuIsa isa = detect();
  return isa;
}
std::string machine_model() {
  const std::string name = brand();
  return name.empty() ? "CPU" : name;
}
#else
CpuIsa machine_isa() { return CpuIsa::portable; }
std::string machine_model() { return "CPU"; }
#endif

}  // namespace strata::cpu
