// Division of indices by a number that the host knows at launch (a page size, a ratio). It is a multiplication and a shift; an integer
// division would cost as much as the memory traffic of an index kernel.
#pragma once

#include <bit>
#include <cstdint>

namespace strata::cuda {

// n / d and n % d for 0 <= n < 2^31 and 1 <= d < 2^31.
class Divisor {
 public:
  explicit Divisor(int32_t divisor) : divisor_(static_cast<uint32_t>(divisor)) {
    // multiplier = ceil(2^(31 + shift) / d) with shift = ceil(log2(d)): the excess over 2^(31 + shift) / d is below 2^shift / d, too small
    // to reach the next integer for any n below 2^31; and the multiplier is below 2^32.
    shift_ = static_cast<uint32_t>(std::bit_width(divisor_ - 1u));
    multiplier_ = static_cast<uint32_t>(((uint64_t{1} << (31u + shift_)) + divisor_ - 1u) / divisor_);
  }

  // 2 n moves the shift by 31 to the 32 bits of the product's upper half.
  __device__ int32_t divide(int32_t n) const {
    return static_cast<int32_t>(__umulhi(static_cast<uint32_t>(n) << 1, multiplier_) >> shift_);
  }
  __device__ int32_t value() const { return static_cast<int32_t>(divisor_); }

 private:
  uint32_t divisor_, multiplier_, shift_;
};

}  // namespace strata::cuda
