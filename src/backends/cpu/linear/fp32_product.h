// What a CPU without bf16 products can multiply at best: a library's product of fp32, for benchmarks to report against.
#pragma once

#include <cstdint>

namespace strata {
class Device;
}

namespace strata::cpu {

// False where the library was built without oneDNN, or the device's Config::cpu_isa asks for less than the machine has: oneDNN can only be
// capped for the whole process.
bool has_fp32_product(const Device& device);

// c = a b^T by oneDNN with the device's threads, where there is such a product; a, b and c are fp32 [n, n], row-major. Throws
// Error(device_failure) where oneDNN fails.
void fp32_product(const Device& device, int64_t n, const float* a, const float* b, float* c);

}  // namespace strata::cpu
