// The best product of a CPU without bf16 products: a library's fp32 product, as a ceiling for benchmarks.
#pragma once

#include <cstdint>

namespace strata {
class Device;
}

namespace strata::cpu {

// c = a b^T by oneDNN with the device's threads; a, b and c are fp32 [n, n], row-major. Returns false, with c unchanged, where the library
// was built without oneDNN, or Config::cpu_isa is below the machine's: oneDNN can only be capped for the whole process. Throws
// device_failure where oneDNN fails.
bool fp32_product(const Device& device, int64_t n, const float* a, const float* b, float* c);

}  // namespace strata::cpu
