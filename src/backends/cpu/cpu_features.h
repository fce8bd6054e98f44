// What this machine's processor and operating system let the kernels use.
#pragma once

#include "strata/config.h"

namespace strata::cpu {

// The best of portable, avx2, avx512, avx512_bf16, amx. Asks Linux for the AMX tile state once per process.
CpuIsa machine_isa();

}  // namespace strata::cpu
