// Divides indices by a number that the host knows at launch, with a multiplication and a shift. For host and device code.
#pragma once

#include <cstdint>

namespace strata::opencl {

// 1 <= value < 2^31. Made by divisor_of().
struct Divisor {
  uint32_t value, multiplier, shift;
};

constexpr Divisor divisor_of(int64_t value) {
  const auto d = static_cast<uint64_t>(value);
  uint32_t shift = 0;
  while ((uint64_t{1} << shift) < d) ++shift;
  // The multiplier, ceil(2^(31 + shift) / d), is below 2^32. The quotient is exact for all n below 2^31.
  return {static_cast<uint32_t>(d), static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + d - 1) / d), shift};
}

#ifdef __OPENCL_CPP_VERSION__
// n / d for 0 <= n < 2^31.
inline int32_t divide(int32_t n, Divisor d) { return (int32_t)(mul_hi((uint32_t)n << 1, d.multiplier) >> d.shift); }
// n / d for 0 <= n.
inline int64_t divide_long(int64_t n, Divisor d) { return n < 0x80000000L ? (int64_t)divide((int32_t)n, d) : n / d.value; }
#endif

}  // namespace strata::opencl
