// How four e4m3 codes lie in a word of a packed weight.
#pragma once

#include <cstdint>

namespace strata::cuda::sm90 {

// Of channels 2 q, 2 q + 1 (a, b) and 2 q + 8, 2 q + 9 (c, d), a byte each: two pairs of fp16 by an instruction each, of bf16 by four
// (mixed_values.cuh).
constexpr uint32_t mixed_word(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return a | b << 8 | c << 16 | d << 24; }

}  // namespace strata::cuda::sm90
