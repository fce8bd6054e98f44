// The words of a packed weight give back what went in, as kernels take it out (backends/cuda/linear/sm90/mixed/mixed_values.cuh).
#include "backends/cuda/linear/sm90/mixed/mixed_word.h"

#include <gtest/gtest.h>

#include <bit>

#include "formats/e4m3.h"

namespace strata::cuda::sm90 {
namespace {

float bf16_times_bias(uint32_t bits) { return std::bit_cast<float>(bits << 16) * 0x1p120f; }

TEST(MixedWord, EveryPairOfCodesOfEachHalf) {
  for (uint32_t x = 0; x < 256; ++x) {
    for (uint32_t z = 0; z < 256; ++z) {
      if ((x & 0x7F) == 0x7F || (z & 0x7F) == 0x7F) continue;
      for (const uint32_t word : {mixed_word(x, 0, z, 0x5A), mixed_word(0xA5, x, 0x3C, z) >> 16}) {
        ASSERT_EQ(bf16_times_bias(word & 0x87F0), to_float(E4m3{static_cast<uint8_t>(x)})) << x << " next to " << z;
        ASSERT_EQ(bf16_times_bias((word << 4 & 0x80F0) | (word >> 4 & 0x0700)), to_float(E4m3{static_cast<uint8_t>(z)}))
            << z << " next to " << x;
      }
    }
  }
}

}  // namespace
}  // namespace strata::cuda::sm90
