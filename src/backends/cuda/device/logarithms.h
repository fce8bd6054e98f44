// Softmax in base 2, and back.
#pragma once

namespace strata::cuda {

inline constexpr float kLn2 = 0.69314718055994530942f, kLog2e = 1.44269504088896340736f;

}  // namespace strata::cuda
