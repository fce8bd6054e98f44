// strata: the command line over the public API.
#include <fmt/format.h>

#include <exception>
#include <string>

#include "common.h"

int main(int argc, char** argv) {
  using namespace strata::cli;
  CLI::App app{"strata: DeepSeek attention layers (V4; MLA of V2, V3, V3.2) on CPUs and accelerators"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "strata " STRATA_VERSION);
  app.footer(
      "Exit codes: 0 success; 1 the command ran and a check failed; 2 bad input, one line on stderr.\n"
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
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    const std::string first = argc > 1 ? argv[1] : "";
    if (!first.empty() && first.front() != '-' && app.get_subcommands([&](const CLI::App* s) { return s->get_name() == first; }).empty()) {
      fmt::print(stderr, "strata: the command must be one of those in strata --help, is '{}'\n", first);
    } else {
      fmt::print(stderr, "strata: {}\n", error.what());
    }
    return kBadInput;
  } catch (const std::exception& error) {  // strata::Error: names the thing, what was expected and what was found
    fmt::print(stderr, "strata: {}\n", error.what());
    return kBadInput;
  }
  return code;
}
