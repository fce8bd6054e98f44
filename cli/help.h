// How --help prints an option: what it takes, in which range, and what it is without.
#pragma once

#include <CLI/CLI.hpp>

namespace strata::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_option_name(const CLI::Option* option, bool positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace strata::cli
