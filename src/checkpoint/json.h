// Parsing of JSON that may be hostile: bounded depth, no duplicate keys, every failure an invalid_file error.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace strata {

// `origin` begins every message.
nlohmann::json parse_json(std::string_view text, const std::string& origin);

// Reads a whole JSON file of at most `max_bytes` bytes. Names a git-lfs pointer, a web page and the like in its error.
std::string read_text_file(const std::string& path, size_t max_bytes);

// A value as shown in messages: compact, cut after 60 characters, safe for any bytes.
std::string brief(const nlohmann::json& value);

// A key in quotes, as it can be repeated on a command line: whole up to 256 bytes, UTF-8 unchanged, control characters escaped.
std::string quoted_key(const std::string& name);

}  // namespace strata
