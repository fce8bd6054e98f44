#include "numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "testkit/cases/layer_shape.h"

namespace strata::cli {
namespace {

using Parser = std::optional<int64_t> (*)(std::string_view);

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// [0-9]+(.[0-9]+)? times `unit`, exactly.
std::optional<int64_t> scaled(std::string_view number, int64_t unit) {
  int64_t whole = 0, fraction = 0, denominator = 1;
  bool digits = false, point = false;
  for (const char c : number) {
    if (c == '.') {
      if (point || !digits) return {};
      point = true;
      digits = false;
      continue;
    }
    if (!is_digit(c)) return {};
    int64_t& value = point ? fraction : whole;
    if (__builtin_mul_overflow(value, int64_t{10}, &value) || __builtin_add_overflow(value, int64_t{c - '0'}, &value)) return {};
    if (point && __builtin_mul_overflow(denominator, int64_t{10}, &denominator)) return {};
    digits = true;
  }
  if (!digits) return {};
  int64_t result = 0, rest = 0;
  if (__builtin_mul_overflow(whole, unit, &result) || __builtin_mul_overflow(fraction, unit, &rest)) return {};
  if (rest % denominator != 0 || __builtin_add_overflow(result, rest / denominator, &result)) return {};
  return result;
}

// Splits the text where its letters begin; they come in lower case.
std::pair<std::string_view, std::string> split(std::string_view text) {
  size_t end = 0;
  while (end < text.size() && (is_digit(text[end]) || text[end] == '.')) ++end;
  std::string letters(text.substr(end));
  for (char& c : letters) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return {text.substr(0, end), letters};
}

// base^(1 + position of the letter).
int64_t power(int64_t base, size_t position) {
  int64_t unit = base;
  for (size_t i = 0; i < position; ++i) unit *= base;
  return unit;
}

CLI::Validator number_in(Parser parse, int64_t low, int64_t high, const char* kind, const char* examples) {
  const auto transform = [=](std::string& text) -> std::string {
    const std::optional<int64_t> value = parse(text);
    if (!value || *value < low || *value > high) {
      return fmt::format("must be {} in [{}, {}], as {}, is '{}'", kind, low, high, examples, text);
    }
    text = std::to_string(*value);
    return "";
  };
  return {transform, fmt::format("in [{}, {}]", low, high)};
}

}  // namespace

std::optional<int64_t> parse_count(std::string_view text) {
  const auto [number, suffix] = split(text);
  if (suffix.empty()) return scaled(number, 1);
  const size_t at = std::string_view("kmg").find(suffix);
  return at == std::string_view::npos || suffix.size() != 1 ? std::nullopt : scaled(number, power(1024, at));
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  auto [number, suffix] = split(text);
  if (!suffix.empty() && suffix.back() == 'b') suffix.pop_back();
  if (suffix.empty()) return scaled(number, 1);
  const bool binary = suffix.size() == 2 && suffix[1] == 'i';
  const size_t at = std::string_view("kmgt").find(suffix[0]);
  if (at == std::string_view::npos || suffix.size() != (binary ? 2 : 1)) return {};
  return scaled(number, power(binary ? 1024 : 1000, at));
}

std::string plain_layer_name(const std::string& name) {
  if (!testkit::is_like_layer(name)) return name;
  std::string plain;
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('-', begin + 1), name.size());
    const size_t digits = std::min(name.find_first_of("0123456789", begin), end);
    const std::string word = name.substr(begin, digits - begin), number = name.substr(digits, end - digits);
    const std::optional<int64_t> count = std::isalpha(static_cast<unsigned char>(name[end - 1])) ? parse_count(number) : std::nullopt;
    plain += word + (count ? std::to_string(*count) : number);
    begin = end;
  }
  return plain;
}

CLI::Validator count_in(int64_t low, int64_t high) {
  return number_in(parse_count, low, high, "a whole number", "4096, 128k (131072) or 1M (1048576)");
}

CLI::Validator bytes_in(int64_t low, int64_t high) {
  return number_in(parse_bytes, low, high, "bytes", "4096, 80GB (80 * 10^9) or 1.5GiB (1.5 * 2^30)");
}

}  // namespace strata::cli
