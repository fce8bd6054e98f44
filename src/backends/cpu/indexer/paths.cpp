#include "backends/cpu/indexer/paths.h"

namespace strata::cpu::indexer {
namespace {

constexpr Path kSimd = {"cpu/simd", CpuIsa::portable, simd_scorer};

#if defined(__x86_64__)
constexpr Path kAmx = {"cpu/amx", CpuIsa::amx, [](const Device&) { return amx_scorer(); }};
constexpr Path kBf16 = {"cpu/avx512_bf16", CpuIsa::avx512_bf16, [](const Device&) { return avx512_bf16_scorer(); }};
constexpr Path kIntel[] = {kAmx, kSimd, kBf16};
constexpr Path kOthers[] = {kAmx, kBf16, kSimd};
#else
constexpr Path kOthers[] = {kSimd};
#endif

}  // namespace

std::span<const Path> paths() {
#if defined(__x86_64__)
  // VDPBF16PS does two fp32 multiply-adds a lane. AMD's cores issue it like one of those; Intel's (measured on Sapphire Rapids) once in
  // two cycles, where two fp32 ones fit into each cycle: half the rate of the fp32 path.
  if (__builtin_cpu_is("intel")) return kIntel;
#endif
  return kOthers;
}

}  // namespace strata::cpu::indexer
