// A request in a message: its number in the step, and its id if it has one.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

namespace strata {

struct RequestName {
  int64_t number = 0;
  int64_t id = -1;  // -1: none
};

}  // namespace strata

// "request 2", "request 2 (id 7)".
template <>
struct fmt::formatter<strata::RequestName> : fmt::formatter<std::string_view> {
  auto format(const strata::RequestName& name, format_context& context) const {
    fmt::format_to(context.out(), "request {}", name.number);
    return name.id == -1 ? context.out() : fmt::format_to(context.out(), " (id {})", name.id);
  }
};
