// The instruction sets that this machine's processor and operating system support.
#pragma once

#include <string>

#include "strata/config.h"

namespace strata::cpu {

// The best of portable, avx2, avx512, avx512_bf16, amx. Requests the AMX tile state from Linux once per process.
CpuIsa machine_isa();

// The processor's name as it reports it: "Intel(R) Xeon(R) Platinum 8480+". "CPU" if it reports none.
std::string machine_model();

}  // namespace strata::cpu
