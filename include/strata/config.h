// Run-time settings of the library. The environment is read in exactly one place: Config::from_environment.
#pragma once

#include <map>
#include <string>

namespace strata {

// Highest instruction set the CPU backend may use. `best` means what the machine has.
enum class CpuIsa { portable, avx2, avx512, avx512_bf16, amx, best };

const char* to_string(CpuIsa isa);
// Throws Error(invalid_argument) for an unknown name.
[[nodiscard]] CpuIsa parse_cpu_isa(const std::string& name);

struct Config {
  int cpu_threads = 0;            // of the CPU backend, and of what any device does on the host (loading); 0: one per core the process has
  CpuIsa cpu_isa = CpuIsa::best;  // caps the CPU backend, so that every path can be tested on one machine
  // op name -> implementation name ("reference", "cpu/amx", ...). "*" stands for every op that has such an implementation. Names that are
  // not known are found by check_forced (op_set.h).
  std::map<std::string, std::string> force{};
  // Folder where OpenCL devices keep the programs that they built, for later processes; empty: nowhere. A file there that does not fit the
  // device, its driver and this build is not used.
  std::string opencl_cache{};
  // The OpenCL loader, a path or a name that dlopen takes; empty: libOpenCL.so.1. Of the first OpenCL device that a process opens.
  std::string opencl_library{};
  // Size of the sub-groups that OpenCL kernels are compiled for, 8 or 16; 0: 8 where the device has it, which is what its matrix engine
  // then takes. Of the first Device of its number.
  int opencl_subgroup_size = 0;

  // STRATA_CPU_THREADS, STRATA_CPU_ISA, STRATA_OPENCL_CACHE, STRATA_OPENCL_LIBRARY, STRATA_OPENCL_SUBGROUP,
  // STRATA_FORCE="op=implementation,...". Throws Error(invalid_argument).
  [[nodiscard]] static Config from_environment();
};

}  // namespace strata
