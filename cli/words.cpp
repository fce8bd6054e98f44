#include "words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "strata/error.h"

namespace strata::cli {
namespace {

// Damerau's distance, without edits inside an exchanged pair.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::vector<std::string> commands(const CLI::App& app) {
  std::vector<std::string> names{"help"};
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

[[noreturn]] void refuse(const std::string& what, const std::string& word, const std::vector<std::string>& known, const std::string& help) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} must be one that {} lists, is '{}'{}", what, help, word, nearest_text(word, known)));
}

// "NAME: <middle>N" or "NAME: N<middle>..." as CLI11 has it; the text on each side of `middle`.
std::optional<std::pair<std::string, std::string>> around(const std::string& text, std::string_view middle) {
  const size_t at = text.find(middle);
  if (at == std::string::npos) return std::nullopt;
  return std::pair(text.substr(0, at), text.substr(at + middle.size()));
}

}  // namespace

std::string counted(int64_t count, std::string_view noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

std::string with_replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

std::string in_plain_words(const CLI::ParseError& error) {
  std::string text = error.what();
  if (const auto sides = around(text, ": At Most 1 required but received ")) {
    return fmt::format("{}: must be given once, is given {} times", sides->first, sides->second);
  }
  if (const auto sides = around(text, ": 1 required ")) return fmt::format("{}: expected a value, has none", sides->first);
  if (const auto sides = around(text, " excludes ")) return fmt::format("{} and {}: give one, not both", sides->first, sides->second);
  return text;
}

std::optional<std::string> nearest(const std::string& word, const std::vector<std::string>& known) {
  constexpr size_t kLongestWord = 100;
  if (word.size() > kLongestWord) return std::nullopt;
  std::optional<std::string> best;
  size_t fewest = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& k : known) {
    const size_t n = k.starts_with(word) && word.size() > 2 ? 1 : edits(word, k);
    if (n < fewest && n < k.size()) fewest = n, best = k;
  }
  return best;
}

std::string nearest_text(const std::string& word, const std::vector<std::string>& known) {
  const auto meant = nearest(word, known);
  return meant ? fmt::format("; the nearest is '{}'", *meant) : "";
}

void check_words(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* command = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") return;
    if (command == nullptr && !word.starts_with("-")) {
      const std::vector<std::string> known = commands(app);
      if (std::find(known.begin(), known.end(), word) == known.end()) refuse("the command", word, known, "strata help");
      if (word == "help") return;
      command = app.get_subcommand(word);
      continue;
    }
    if (!word.starts_with("--")) continue;
    const CLI::App& of = command == nullptr ? app : *command;
    const std::string name = word.substr(0, word.find('='));
    if (of.get_option_no_throw(name) != nullptr) continue;
    if (command == nullptr) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("an option that comes before the command must be --help or --version, is '{}'", name));
    }
    refuse(fmt::format("an option of strata {}", of.get_name()), name, long_options(of), fmt::format("strata {} --help", of.get_name()));
  }
}

}  // namespace strata::cli
