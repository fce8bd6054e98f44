// Layout of four e4m3 values in a word of a packed weight, with which few instructions convert them to two pairs of bf16.
#pragma once

#include <cstdint>

namespace strata::cuda::sm90 {

// A word of four values a, b (channels 2 q, 2 q + 1), c, d (2 q + 8, 2 q + 9). The bits of a and b are where bf16 has sign, exponent and
// mantissa. Those of c and d are in the remaining bits, and two shifts move them to these positions (mixed_values.cuh). In each half of the
// word, with x of (a, b) and z of (c, d), bits seeeemmm each:
//   15: s of x   14-12: upper eee of z   11: s of z   10-4: eeeemmm of x   3: lower e of z   2-0: mmm of z
constexpr uint32_t mixed_half(uint32_t x, uint32_t z) {
  return (x & 0x80) << 8 | (x & 0x7F) << 4 | (z & 0x80) << 4 | (z & 0x70) << 8 | (z & 0x0F);
}
constexpr uint32_t mixed_word(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return mixed_half(a, c) | mixed_half(b, d) << 16; }

}  // namespace strata::cuda::sm90
