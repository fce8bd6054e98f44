// Words at the prompt: which known one was meant, and what is said of one that is not known.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/error.h"

namespace strata::cli {

// "1 request", "2 requests".
std::string counted(int64_t count, std::string_view noun);

// The text with every `from` replaced.
std::string with_replaced(std::string text, std::string_view from, std::string_view to);

// The known word that is fewest edits away (a letter put in, left out, replaced, or two neighbours exchanged), if they are few for its
// length.
std::optional<std::string> nearest(const std::string& word, const std::vector<std::string>& known);

// "; the nearest is 'sparse_attn_decode'" or "".
std::string nearest_text(const std::string& word, const std::vector<std::string>& known);

// What is wrong with a command line, in words about its options instead of the parser's.
std::string in_plain_words(const CLI::ParseError& error);

// f(); what it says of `name` is said of `option`, as the user types it. Of strata::Error alone.
template <class F>
auto saying(const std::string& option, std::string_view name, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw Error(error.code(), with_replaced(error.what(), name, option));
  }
}

// Throws strata::Error for a command or an option that `app` does not have, before anything else is checked. argv as main has it.
void check_words(const CLI::App& app, int argc, const char* const* argv);

}  // namespace strata::cli
