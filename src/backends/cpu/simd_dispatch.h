// Selects the Highway target of a device's kernels. Config::cpu_isa caps a device, not the process, so the entry of the dispatch table is
// selected here instead of by Highway's process-wide state. Include this before any Highway header.
#pragma once

// Machines without AVX2 use the portable target: fewer compilations of every kernel, and no x86 server lacks AVX2. Vectors of unknown
// length are excluded because kernels keep arrays of accumulators.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/detect_targets.h>
#include <hwy/targets.h>

#include <cstddef>
#include <cstdint>

#include "backends/cpu/cpu_device.h"

namespace strata::cpu {

// Index into HWY_DISPATCH_TABLE(function): the best compiled target that the machine has and the device's cap allows. A static copy per
// file, because files may be compiled for different sets of targets.
[[maybe_unused]] static size_t simd_index([[maybe_unused]] CpuIsa isa) {
  if (HWY_TARGETS == HWY_STATIC_TARGET) return 0;  // tables of one entry
  // Queried once: every cpuid instruction costs a trap of microseconds in a virtual machine.
  static const int64_t supported = hwy::SupportedTargets();
  int64_t targets = supported;
#if HWY_ARCH_X86
  // AVX3_DL has instructions that come with avx512_bf16 (cpu_features.cpp); avx512 does without them, so that both can be tested.
  if (isa < CpuIsa::avx512_bf16) targets &= ~int64_t{HWY_AVX3_DL};
  if (isa < CpuIsa::avx512) targets &= ~int64_t{HWY_AVX3};
  if (isa < CpuIsa::avx2) targets &= ~int64_t{HWY_AVX2};
#endif
  hwy::ChosenTarget chosen;
  chosen.Update(targets);
  return chosen.GetIndex();
}
[[maybe_unused]] static size_t simd_index(const Device& device) { return simd_index(isa_of(device)); }

}  // namespace strata::cpu
