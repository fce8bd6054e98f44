#include "runner/memory.h"

#include <fstream>
#include <string>

namespace strata::runner {

size_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

void reset_peak_resident_bytes() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace strata::runner
