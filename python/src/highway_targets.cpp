// The two functions of libhwy that dispatch tables need; Debian ships it as a shared library alone. The sets of instructions are those that
// libhwy 1.0 asks the processor for.
#include <hwy/targets.h>

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace hwy {
namespace {

#if HWY_ARCH_X86
// Registers of cpuid whose bits name sets of instructions.
struct Registers {
  unsigned leaf1_ecx = 0, leaf7_ebx = 0, leaf7_ecx = 0, extended_ecx = 0;

  Registers() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
      leaf7_ebx = ebx;
      leaf7_ecx = ecx;
    }
    if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0) extended_ecx = ecx;
  }
};

constexpr unsigned bits(std::initializer_list<int> numbers) {
  unsigned mask = 0;
  for (const int number : numbers) mask |= 1u << number;
  return mask;
}
constexpr bool has(unsigned value, unsigned mask) { return (value & mask) == mask; }
#endif

}  // namespace

int64_t SupportedTargets() {
  int64_t targets = 0;
#if HWY_ARCH_X86
  const Registers cpu;
  __builtin_cpu_init();
  // The compiler's functions also look at the registers that the operating system saves.
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && has(cpu.leaf1_ecx, bits({12, 29}))                      // FMA, F16C
                    && has(cpu.leaf7_ebx, bits({3, 8}))                                                            // BMI1, BMI2
                    && has(cpu.extended_ecx, bits({5}));                                                           // LZCNT
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") != 0 && has(cpu.leaf7_ebx, bits({17, 28, 30, 31}));  // DQ, CD, BW, VL
  // VBMI, VBMI2, GFNI, VAES, VPCLMULQDQ, VNNI, BITALG, VPOPCNTDQ.
  const bool avx3_dl = avx3 && has(cpu.leaf7_ecx, bits({1, 6, 8, 9, 10, 11, 12, 14}));
  if (avx2) targets |= HWY_AVX2;
  if (avx3) targets |= HWY_AVX3;
  if (avx3_dl) targets |= HWY_AVX3_DL;
#endif
  return targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
