// An FP8 linear layer for few tokens on Hopper: definitions shared by host code and the kernels.
#pragma once

namespace strata::cuda::sm90 {

inline constexpr int kLinearMaxTokens = 64;  // up to this these kernels come first; beyond it, where their tiles are small (linear.cpp)
inline constexpr int kLinearBlock = 128;     // channels per scale, multiplied at a time
inline constexpr int kLinearRows = 64;       // output features that a warpgroup multiplies

}  // namespace strata::cuda::sm90
