// The two functions of libhwy that dispatch tables need; Debian ships it as a shared library alone. The sets of instructions are those that
// libhwy 1.0 asks the processor for.
#include <hwy/targets.h>

namespace hwy {

int64_t SupportedTargets() {
  int64_t targets = 0;
#if HWY_ARCH_X86
  __builtin_cpu_init();
  // The compiler's runtime also looks at the registers that the operating system saves.
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("bmi") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("f16c") != 0 && __builtin_cpu_supports("lzcnt") != 0;
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                    __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                    __builtin_cpu_supports("avx512cd") != 0;
  const bool avx3_dl = avx3 && __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0 &&
                       __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vbmi2") != 0 &&
                       __builtin_cpu_supports("vaes") != 0 && __builtin_cpu_supports("avx512vpopcntdq") != 0 &&
                       __builtin_cpu_supports("avx512bitalg") != 0 && __builtin_cpu_supports("gfni") != 0;
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
