// What this machine's processor and operating system let the kernels use.
#pragma once

#include <string>

#include "strata/config.h"

namespace strata::cpu {

// The best of portable, avx2, avx512, avx512_bf16, amx. Asks Linux for the AMX tile state once per process.
CpuIsa machine_isa();

// The processor's name as it gives it: "Intel(R) Xeon(R) Platinum 8480+". "CPU" where it gives none.
std::string machine_model();

}  // namespace strata::cpu
