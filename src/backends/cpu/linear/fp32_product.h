// What a CPU without bf16 products can multiply at best: a library's product of fp32, for benchmarks to report against.
#pragma once

#include <cstdint>

namespace strata {
class Device;
}

namespace strata::cpu {

// c = a b^T by oneDNN with the device's threads; a, b and c are fp32 [n, n], row-major. False, with c unchanged, where the library was
// built without oneDNN, or Config::cpu_isa asks for less than the machine has: oneDNN can only be capped for the whole process. Throws
// Error(device_failure) where oneDNN fails.
bool fp32_product(const Device& device, int64_t n, const float* a, const float* b, float* c);

}  // namespace strata::cpu
