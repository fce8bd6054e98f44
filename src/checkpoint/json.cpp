#include "checkpoint/json.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "checkpoint/file_kind.h"
#include "core/check.h"

namespace strata {
namespace {

// Deeper than any config or header; shallow enough that printing a value, which is recursive, cannot exhaust the stack.
constexpr size_t kMaxDepth = 64;
constexpr size_t kBriefLength = 60;
constexpr size_t kQuotedKeyLength = 256;

// Builds the tree from the parser's events. The library's own way to watch a parse, a callback, takes time quadratic in the number of
// objects within an object: minutes for the header of 200000 tensors.
class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  using json = nlohmann::json;
  TreeBuilder(json& root, const std::string& origin) : root_(root), origin_(origin) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    const auto [entry, added] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
    if (!added) fail(ErrorCode::invalid_file, "{}: key {}: expected once, found twice", origin_, quoted_key(name));
    value_ = &entry->second;
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception& e) override {
    fail(ErrorCode::invalid_file, "{}: expected valid JSON: {}", origin_, e.what());
  }

 private:
  bool add(json value) {
    at() = std::move(value);
    return true;
  }
  bool open(json value) {
    if (open_.size() >= kMaxDepth) fail(ErrorCode::invalid_file, "{}: nesting: expected at most {} levels, found more", origin_, kMaxDepth);
    json& here = at();
    here = std::move(value);
    open_.push_back(&here);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  // Where the next value goes. The address stays: an array grows only when what was added last is closed.
  json& at() {
    if (open_.empty()) return root_;
    if (!open_.back()->is_array()) return *value_;
    json::array_t& array = open_.back()->get_ref<json::array_t&>();
    return array.emplace_back();
  }

  json& root_;
  const std::string& origin_;
  std::vector<json*> open_;  // objects and arrays that are not closed
  json* value_ = nullptr;    // of the key that was read last
};

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& origin) {
  nlohmann::json root;
  TreeBuilder builder(root, origin);
  nlohmann::json::sax_parse(text, &builder);
  return root;
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::invalid_file, "{}: cannot be opened: {}", path, std::strerror(errno));
  std::string text;
  std::vector<char> chunk(1 << 16);
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())), in.gcount() > 0) {
    text.append(chunk.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > max_bytes) fail(ErrorCode::invalid_file, "{}: size: expected at most {} bytes, is larger", path, max_bytes);
  }
  if (in.bad()) fail(ErrorCode::invalid_file, "{}: cannot be read: {}", path, std::strerror(errno));
  if (text.empty()) fail(ErrorCode::invalid_file, "{}: expected JSON, is empty", path);
  if (const auto kind = file_kind(std::string_view(text).substr(0, kFileKindBytes))) {
    fail(ErrorCode::invalid_file, "{}: expected JSON, is {}", path, *kind);
  }
  return text;
}

std::string quoted_key(const std::string& name) {
  std::string text = nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // What JSON need not escape and a terminal may obey: DEL, and U+0080 to U+009F, which are C2 80 to C2 9F.
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    if (byte(at) == 0x7f) text.replace(at, 1, "\\u007f");
    if (byte(at) == 0xc2 && byte(at + 1) < 0xa0) text.replace(at, 2, fmt::format("\\u{:04x}", byte(at + 1)));
  }
  if (text.size() <= kQuotedKeyLength) return text;
  size_t end = kQuotedKeyLength;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not within a character
  return text.substr(0, end) + "...";
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
