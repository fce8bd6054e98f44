#include "help.h"

#include <string>

namespace strata::cli {
namespace {

constexpr size_t kColumn = 34;

// CLI11 puts the type and what each validator says of itself into one text: "INT:INT in [1 - 4096]".
struct Described {
  std::string type, range;
};

Described describe(const CLI::Option& option) {
  const std::string text = option.get_type_name();
  const size_t colon = text.find(':');
  Described d{text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)};
  for (const char* begin : {"INT in [", "FLOAT in [", "UINT in [", "in ["}) {
    if (!d.range.starts_with(begin)) continue;
    d.range = d.range.substr(std::string(begin).size());
    if (d.range.ends_with("]")) d.range.pop_back();
    for (const char* dash : {" - ", ", "}) {
      if (const size_t at = d.range.find(dash); at != std::string::npos) d.range.replace(at, std::string(dash).size(), " to ");
    }
    break;
  }
  if (d.type == "INT" || d.type == "UINT") d.type = "N";
  if (d.type == "FLOAT") d.type = "X";
  return d;
}

}  // namespace

HelpFormatter::HelpFormatter() { column_width(kColumn); }

// "--graph, --no-graph" without what each sets.
std::string HelpFormatter::make_option_name(const CLI::Option* option, bool positional) const {
  if (positional) return option->get_name(true, false);
  std::string text;
  for (const std::string& name : option->get_snames()) text += (text.empty() ? "-" : ", -") + name;
  for (const std::string& name : option->get_lnames()) text += (text.empty() ? "--" : ", --") + name;
  return text;
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  if (option->get_type_size() == 0) return "";
  const Described d = describe(*option);
  std::string text = " " + d.type + (option->get_expected_max() > 1 ? "..." : "");
  std::string more = d.range;
  if (!option->get_default_str().empty()) more += (more.empty() ? "" : "; ") + std::string("default ") + option->get_default_str();
  if (option->get_required()) more += more.empty() ? "required" : "; required";
  if (!more.empty()) text += " (" + more + ")";
  return text;
}

}  // namespace strata::cli
