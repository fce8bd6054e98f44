// What the tests of page pools share: groups, and the message of what is refused.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "strata/error.h"
#include "unit/batch_case.h"

namespace strata::oracle {

inline const CacheGroupSpec kWindow = group_spec(CacheGroup::window, 64, 1, 128);
inline const CacheGroupSpec kCompressed = group_spec(CacheGroup::c4_compressed, 64, 4, 0);
inline const CacheGroupSpec kState = group_spec(CacheGroup::c4_state, 4, 1, 8);

// The message of the invalid_argument that f throws; empty: it throws none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "";
}

}  // namespace strata::oracle
