// Words at the prompt: which known one was meant, and what is said of one that is not known.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace strata::cli {

// The known word that is fewest edits away (a letter put in, left out, replaced, or two neighbours exchanged), if they are few for its
// length.
std::optional<std::string> nearest(const std::string& word, const std::vector<std::string>& known);

// ", nearest: sparse_attn_decode" or "".
std::string nearest_text(const std::string& word, const std::vector<std::string>& known);

// Throws strata::Error for a command or an option that `app` does not have, before anything else is checked. argv as main has it.
void check_words(const CLI::App& app, int argc, const char* const* argv);

}  // namespace strata::cli
