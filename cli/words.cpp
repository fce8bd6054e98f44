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

}  // namespace

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
