// Recognises files that are often in the place of a checkpoint's file, by their first bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace strata {

// How many first bytes of a file `file_kind` needs.
inline constexpr size_t kFileKindBytes = 512;

// What a file with these first bytes is, and what to do about it, as the end of "expected ..., is "; absent for what may be JSON or
// safetensors.
std::optional<std::string> file_kind(std::string_view begin);

}  // namespace strata
