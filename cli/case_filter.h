// Which cases of the case lists a command is about.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "testkit/harness/case.h"

namespace strata::cli {

struct CaseFilter {
  std::vector<std::string> ops;    // empty: all
  std::vector<std::string> names;  // empty: all; * stands for anything
  std::string implementation;      // empty: all of them (check), the one that the op selects (bench)
};
void add_filter(CLI::App& app, CaseFilter& filter);

// Whether one of the filter's patterns takes this name.
bool takes_name(const CaseFilter& filter, const std::string& name);

// The cases that `wanted` and the filter take, in the lists' order. Throws invalid_argument when there is none, naming what there is.
std::vector<const testkit::AnyCase*> select_cases(const testkit::CaseList& list, const CaseFilter& filter,
                                                  bool (*wanted)(const testkit::Tags&));

// Throws invalid_argument where none of these cases has the filter's implementation.
void check_implementation(const std::vector<const testkit::AnyCase*>& selected, const CaseFilter& filter);

}  // namespace strata::cli
