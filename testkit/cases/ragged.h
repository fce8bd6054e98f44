// Lengths of benchmarks whose requests differ.
#pragma once

#include <cstdint>

namespace strata::testkit {

// Of the request that is number i: from an eighth of `context` to nearly twice as much, the same each time.
constexpr int64_t ragged_length(int64_t context, int64_t i) { return context / 8 + i * 37 % 64 * context / 36; }

}  // namespace strata::testkit
