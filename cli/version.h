// What `strata --version` prints.
#pragma once

#include <string>

namespace strata::cli {

// "strata 0.1.0, commit 1a2b3c4d5e6f, backends reference, cpu (oneDNN), cuda (90a-real)".
std::string version_text();

}  // namespace strata::cli
