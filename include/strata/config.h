// Run-time settings of the library. Only Config::from_environment reads the environment.
#pragma once

#include <map>
#include <string>

namespace strata {

// Highest instruction set that the CPU backend may use.
enum class CpuIsa {
  portable,     // plain C++
  avx2,         // AVX2, FMA, F16C, BMI1 and BMI2
  avx512,       // AVX-512 F, DQ, CD, BW and VL
  avx512_bf16,  // also bf16 products, VBMI, VBMI2 and GFNI
  amx,          // also AMX tiles of bf16
  best,         // all that the machine has
};

// "portable", "avx512_bf16", ...
const char* to_string(CpuIsa isa);
// The inverse of to_string. Throws invalid_argument for an unknown name.
[[nodiscard]] CpuIsa parse_cpu_isa(const std::string& name);

// Passed to open_device; a device keeps a copy. Values that no device can use are refused there.
struct Config {
  int cpu_threads = 0;            // threads of the CPU backend, and of any device's host work (loading); 0: one per core of the process
  CpuIsa cpu_isa = CpuIsa::best;  // upper limit of the CPU backend, so that every path can be tested on one machine
  // Op name -> implementation name ("reference", "cpu/amx", ...). "*": every op that has such an implementation. check_forced (op_set.h)
  // finds unknown names.
  std::map<std::string, std::string> force{};
  // Folder in which OpenCL devices cache built programs for later processes; empty: no cache. A file that does not fit the device, its
  // driver and this build is not used.
  std::string opencl_cache{};
  // The OpenCL loader: a path or a name for dlopen; empty: libOpenCL.so.1. The first OpenCL device that a process opens decides.
  std::string opencl_library{};
  // Size of the sub-groups that OpenCL kernels are compiled for, 8 or 16. 0: 8 where the device supports it, else 16; its matrix engine is
  // used with the same size. The first Device of an index decides.
  int opencl_subgroup_size = 0;

  // Reads STRATA_CPU_THREADS, STRATA_CPU_ISA, STRATA_OPENCL_CACHE, STRATA_OPENCL_LIBRARY, STRATA_OPENCL_SUBGROUP and
  // STRATA_FORCE="op=implementation,...". Throws invalid_argument for values that do not parse.
  [[nodiscard]] static Config from_environment();
};

}  // namespace strata
