// Division rounded up.
#pragma once

#include <cstdint>

namespace strata {

// Does not overflow; a >= 0 and b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace strata
