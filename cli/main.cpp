// strata: the command line over the public API.
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>

#include "common.h"
#include "help.h"
#include "version.h"
#include "words.h"

namespace strata::cli {
namespace {

int refuse(const std::string& message) {
  fmt::print(stderr, "strata: {}\n", message);
  return kBadInput;
}

// What was printed is in buffers until here: a full disk shows when they are written.
int finish(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return refuse(fmt::format("standard output: cannot be written{}{}", errno == 0 ? "" : ": ", errno == 0 ? "" : std::strerror(errno)));
}

// `strata`, `strata help` and `strata help COMMAND`; null: none of them.
const CLI::App* help_of(const CLI::App& app, int argc, const char* const* argv) {
  if (argc == 1) return &app;
  if (std::string(argv[1]) != "help") return nullptr;
  if (argc == 2) return &app;
  const char* const words[] = {argv[0], argv[2]};
  check_words(app, 2, words);
  return std::string(argv[2]) == "help" ? &app : app.get_subcommand(argv[2]);
}

int run(int argc, char** argv) {
  CLI::App app{"strata: DeepSeek attention layers (V4; MLA of V2, V3, V3.2) on CPUs and accelerators"};
  app.name("strata");
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text());
  app.footer(
      "`strata help COMMAND` prints a command's options.\n"
      "Exit codes: 0 success; 1 the command ran and a check failed; 2 bad input, or output that cannot be written: one line on stderr.\n"
      "Example: strata synthesize --preset v4-tiny --out model && strata run --model model");
  int code = kSuccess;
  try {
    add_info(app, code);
    add_synthesize(app, code);
    add_run(app, code);
    add_replay(app, code);
    add_check(app, code);
    add_bench(app, code);
    add_plan(app, code);
    if (const CLI::App* help = help_of(app, argc, argv)) {
      fmt::print("{}", help->help(help == &app ? "" : "strata"));
      return code;
    }
    check_words(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help
    std::ostringstream text;
    app.exit(success, text, text);
    fmt::print("{}", text.str());
  } catch (const CLI::ParseError& error) {
    return refuse(in_plain_words(error));
  } catch (const std::exception& error) {            // strata::Error: names the thing, what was expected and what was found
    if (std::ferror(stdout) != 0) return kBadInput;  // finish() says so
    return refuse(with_replaced(error.what(), "ConfigOptions::accept_keys, --accept-key", "--accept-key"));
  }
  return code;
}

}  // namespace
}  // namespace strata::cli

int main(int argc, char** argv) {
  using namespace strata::cli;
  // A file that is opened later must not take the number of a closed standard output, and get its text.
  if (fcntl(1, F_GETFD) < 0) return refuse("standard output: expected to be open, is closed");
  return finish(run(argc, argv));
}
