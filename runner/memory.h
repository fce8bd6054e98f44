// Resident memory of this process, from the kernel.
#pragma once

#include <cstddef>

namespace strata::runner {

size_t peak_resident_bytes();  // 0 if the kernel does not report it
void reset_peak_resident_bytes();

}  // namespace strata::runner
