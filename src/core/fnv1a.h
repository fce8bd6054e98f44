// A hash of bytes: FNV-1a, 64 bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace strata {

// Continues from the hash of earlier bytes, `seed`.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t seed = 0xCBF29CE484222325u) {
  for (const char c : bytes) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return seed;
}

}  // namespace strata
