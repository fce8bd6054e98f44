#include "checkpoint/json.h"

#include <fstream>
#include <set>
#include <vector>

#include "core/check.h"

namespace strata {
namespace {

// Deeper than any config or header; shallow enough that printing a value, which is recursive, cannot exhaust the stack.
constexpr int kMaxDepth = 64;
constexpr size_t kBriefLength = 60;

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& origin) {
  using nlohmann::json;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= kMaxDepth) fail(ErrorCode::invalid_file, "{}: nesting: expected at most {} levels, found more", origin, kMaxDepth);
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      fail(ErrorCode::invalid_file, "{}: key {}: expected once, found twice", origin, brief(parsed));
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& e) {
    fail(ErrorCode::invalid_file, "{}: expected valid JSON: {}", origin, e.what());
  }
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::invalid_file, "{}: cannot be opened", path);
  std::string text;
  std::vector<char> chunk(1 << 16);
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())), in.gcount() > 0) {
    text.append(chunk.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > max_bytes) fail(ErrorCode::invalid_file, "{}: size: expected at most {} bytes, is larger", path, max_bytes);
  }
  if (in.bad()) fail(ErrorCode::invalid_file, "{}: cannot be read", path);
  return text;
}

std::string brief(const nlohmann::json& value) {
  std::string text;
  if (value.is_object() && value.size() > 8) {
    text = fmt::format("an object of {} entries", value.size());
  } else if (value.is_array() && value.size() > 16) {
    text = fmt::format("an array of {} entries", value.size());
  } else {
    text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  }
  if (text.size() > kBriefLength) text = text.substr(0, kBriefLength) + "...";
  return text;
}

}  // namespace strata
