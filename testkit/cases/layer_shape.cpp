#include "testkit/cases/layer_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "core/check.h"
#include "testkit/cases/ragged.h"
#include "strata/model_config.h"

namespace strata::testkit {
namespace {

// Longer than any shape's name. std::regex recurses for every character, so that a long text ends the stack.
constexpr size_t kLongest = 200;

bool is_v4(const std::string& preset) { return preset.starts_with("v4"); }

int64_t number(const std::ssub_match& digits, int64_t absent) { return digits.matched ? std::stoll(digits.str()) : absent; }

std::optional<KvFormat> format_of(const std::string& name) {
  for (const KvFormat format : {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla}) {
    if (to_string(format) == name) return format;
  }
  return {};
}

// The preset that the name begins with, the longest of several; empty: none.
std::string preset_of(const std::string& name) {
  std::string longest;
  for (const std::string& preset : preset_names()) {
    if (name.starts_with(preset + "-") && preset.size() > longest.size()) longest = preset;
  }
  return longest;
}

bool begins_with_kind(std::string_view rest) {
  return rest.starts_with("-window-") || rest.starts_with("-c4-") || rest.starts_with("-c128-");
}

// "-decode-b2" of "-decode-b2-context40", which names a layer of `begin`; empty: no beginning of it does.
std::string longest_shape(const std::string& begin, const std::string& rest) {
  for (size_t end = rest.size(); end > 0 && end != std::string::npos; end = rest.rfind('-', end - 1)) {
    if (layer_shape(begin + rest.substr(0, end))) return rest.substr(0, end);
  }
  return "";
}

[[noreturn]] void refuse_part(const std::string& name, const std::string& part, const std::string& expected) {
  fail(ErrorCode::invalid_argument, "case '{}': expected {}, has '{}'; a layer is {}", name, expected, part, kLayerNames);
}

}  // namespace

bool is_like_layer(const std::string& name) {
  if (name.size() > kLongest || name.find('*') != std::string::npos) return false;
  return !preset_of(name).empty() || name.find("-decode-b") != std::string::npos || name.find("-prefill-") != std::string::npos;
}

void refuse_layer_name(const std::string& name) {
  const std::string preset = preset_of(name);
  if (preset.empty()) {
    const size_t end =
        std::min({name.find("-decode-"), name.find("-prefill-"), name.find("-window-"), name.find("-c4-"), name.find("-c128-")});
    refuse_part(name, name.substr(0, end), fmt::format("a preset ({})", fmt::join(preset_names(), ", ")));
  }
  std::string begin = preset, rest = name.substr(preset.size());
  const std::string first = rest.substr(0, rest.find('-', 1));
  if (is_v4(preset) && !begins_with_kind(rest)) refuse_part(name, first, fmt::format("-window, -c4 or -c128 after {}", preset));
  if (is_v4(preset)) {
    begin += first;
    rest = rest.substr(first.size());
  }
  if (!rest.starts_with("-decode-") && !rest.starts_with("-prefill-")) {
    refuse_part(name, first == rest || is_v4(preset) ? rest : first, fmt::format("-decode-bREQUESTS or -prefill-TOKENS after {}", begin));
  }
  const std::string step = longest_shape(begin, rest);
  if (step.empty()) {
    const size_t end = rest.find('-', rest.find('-', 1) + 1);
    refuse_part(name, rest.substr(0, end),
                rest.starts_with("-decode-") ? "-decode-bREQUESTS of at least 1 request" : "-prefill-TOKENS of at least 2 tokens");
  }
  refuse_part(name, rest.substr(step.size()), fmt::format("what may follow {}", begin + step));
}

std::string name_of(const LayerShape& s) {
  std::string name = s.preset;
  if (is_v4(s.preset)) name += s.ratio == 0 ? "-window" : fmt::format("-c{}", s.ratio);
  if (s.new_tokens > 1) {
    name += fmt::format("-prefill-{}", s.new_tokens);
    if (s.requests > 1) name += fmt::format("-b{}", s.requests);
    if (s.decode_requests > 0) name += fmt::format("-beside{}", s.decode_requests);
  } else {
    name += fmt::format("-decode-b{}", s.requests);
  }
  const bool decodes = s.new_tokens == 1 || s.decode_requests > 0;
  if (decodes && s.draft > 0) name += fmt::format("-draft{}", s.draft);
  if (s.context > 0) name += fmt::format("-context{}", s.context);
  if (s.context > 0 && s.ragged) name += "-ragged";
  if (s.bound > 0) name += fmt::format("-bound{}", s.bound);
  if (s.fp8_output) name += "-fp8-output";
  if (s.kv_format) name += fmt::format("-{}", to_string(*s.kv_format));
  if (s.tp_size > 1) name += fmt::format("-tp{}", s.tp_size);
  return name;
}

std::optional<LayerShape> layer_shape(const std::string& name) {
  static const std::regex kForm(
      "(.+?)(-window|-c4|-c128)?-(?:decode-b([0-9]{1,9})|prefill-([0-9]{1,9})(?:-b([0-9]{1,9}))?(?:-beside([0-9]{1,9}))?)"
      "(?:-draft([0-9]{1,9}))?(?:-context([0-9]{1,9}))?(-ragged)?(?:-bound([0-9]{1,9}))?"
      "(-fp8-output)?(?:-(bf16|fp8_[a-z0-9_]+))?(?:-tp([0-9]{1,9}))?");
  std::smatch m;
  if (name.size() > kLongest || !std::regex_match(name, m, kForm)) return {};
  LayerShape s{.preset = m[1]};
  const std::vector<std::string> presets = preset_names();
  if (std::find(presets.begin(), presets.end(), s.preset) == presets.end() || is_v4(s.preset) != m[2].matched) return {};
  s.ratio = m[2] == "-c4" ? 4 : m[2] == "-c128" ? 128 : 0;
  s.requests = number(m[3], number(m[5], 1));
  s.new_tokens = number(m[4], 1);
  s.decode_requests = number(m[6], 0);
  s.draft = number(m[7], 0);
  s.context = number(m[8], 0);
  s.ragged = m[9].matched;
  s.bound = number(m[10], 0);
  s.fp8_output = m[11].matched;
  s.kv_format = format_of(m[12]);
  s.tp_size = static_cast<int32_t>(number(m[13], 1));
  // One name of a shape: no zeros, no prefill of one token, no drafts of prefill, no other formats.
  if (name_of(s) != name || s.requests == 0 || (s.bound > 0 && s.bound < longest_of(s))) return {};
  return s;
}

int64_t context_of(const LayerShape& s, int64_t i) { return s.ragged ? ragged_length(s.context, i) : s.context; }

int64_t longest_of(const LayerShape& s) {
  int64_t longest = 0;
  for (int64_t i = 0; i < s.requests + s.decode_requests; ++i) longest = std::max(longest, context_of(s, i));
  return longest + std::max(s.new_tokens, 1 + s.draft);
}

}  // namespace strata::testkit
