// An FP8 linear layer for few tokens on Hopper: what host code and the kernels agree on.
#pragma once

namespace strata::cuda::sm90 {

inline constexpr int kLinearMaxTokens = 64;  // up to here these kernels come first; beyond, where their tiles are small (linear.cpp)
inline constexpr int kLinearBlock = 128;     // channels of one scale, multiplied at a time
inline constexpr int kLinearRows = 64;       // output features that a warpgroup multiplies

}  // namespace strata::cuda::sm90
