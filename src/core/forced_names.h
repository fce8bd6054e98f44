// The text of STRATA_FORCE.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace strata {

// "op=implementation,..." as Config::force. Throws invalid_argument, naming `origin`, for another text.
std::map<std::string, std::string> parse_forced_names(std::string_view text, std::string_view origin);

}  // namespace strata
