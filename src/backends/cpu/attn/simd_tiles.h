// Sizes of the tiles of simd_tiles-inl.h.
#pragma once

namespace strata::cpu {

inline constexpr int kTileRows = 32;  // rows decoded at a time: 64 KB of fp32 at most, which stays in the L2 for all heads
inline constexpr float kLog2E = 1.44269504088896340736f;

}  // namespace strata::cpu
