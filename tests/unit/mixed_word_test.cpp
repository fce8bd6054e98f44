// The words of a packed weight give back what went in, as kernels take it out (backends/cuda/sm90/linear_mixed/mixed_values.cuh).
#include "backends/cuda/sm90/linear_mixed/mixed_word.h"

#include <gtest/gtest.h>

#include <bit>

#include "formats/e4m3.h"

namespace strata::cuda::sm90 {
namespace {

float bf16_times_bias(uint32_t bits) { return std::bit_cast<float>(bits << 16) * 0x1p120f; }

// A byte as a signed number of 16 bits.
uint32_t with_sign(uint32_t byte) { return (byte & 0x80 ? 0xFF00u : 0u) | byte; }

TEST(MixedWord, EveryCodeAtEachPlace) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    const uint32_t words[] = {mixed_word(code, 0xA5, 0x3C, 0x5A), mixed_word(0xA5, code, 0x3C, 0x5A), mixed_word(0xA5, 0x3C, code, 0x5A),
                              mixed_word(0xA5, 0x3C, 0x5A, code)};
    for (int place = 0; place < 4; ++place) {
      const uint32_t byte = words[place] >> 8 * place & 0xFF;
      ASSERT_EQ(bf16_times_bias(with_sign(byte) << 4 & 0x87F0), to_float(E4m3{static_cast<uint8_t>(code)})) << code << " at " << place;
    }
  }
}

}  // namespace
}  // namespace strata::cuda::sm90
