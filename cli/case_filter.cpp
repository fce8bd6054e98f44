#include "case_filter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "strata/error.h"
#include "words.h"

namespace strata::cli {
namespace {

// * matches any number of characters.
bool matches(const std::string& pattern, const std::string& text) {
  size_t p = 0, t = 0, star = std::string::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

void add_filter(CLI::App& app, CaseFilter& filter) {
  app.add_option("--op", filter.ops, "only these ops");
  app.add_option("--case", filter.names, "only the cases of this name; * stands for anything; may be repeated");
  app.add_option("--impl", filter.implementation, "only this implementation");
}

bool takes_name(const CaseFilter& filter, const std::string& name) {
  return filter.names.empty() ||
         std::any_of(filter.names.begin(), filter.names.end(), [&](const std::string& pattern) { return matches(pattern, name); });
}

std::vector<const testkit::AnyCase*> select_cases(const testkit::CaseList& list, const CaseFilter& filter,
                                                  bool (*wanted)(const testkit::Tags&)) {
  std::vector<std::string> ops;
  std::vector<const testkit::AnyCase*> selected;
  for (const auto& c : list) {
    if (!wanted(c->tags())) continue;
    if (ops.empty() || ops.back() != c->op()) ops.push_back(c->op());
    if (!filter.ops.empty() && std::find(filter.ops.begin(), filter.ops.end(), c->op()) == filter.ops.end()) continue;
    if (!takes_name(filter, c->name())) continue;
    selected.push_back(c.get());
  }
  for (const std::string& op : filter.ops) {
    if (std::find(ops.begin(), ops.end(), op) == ops.end()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--op must be one of {}, is '{}'{}", fmt::join(ops, ", "), op, nearest_text(op, ops)));
    }
  }
  for (const std::string& pattern : filter.names) {
    const auto takes = [&](const testkit::AnyCase* c) { return matches(pattern, c->name()); };
    if (std::any_of(selected.begin(), selected.end(), takes)) continue;
    std::vector<std::string> names;
    for (const auto& c : list) names.push_back(c->name());
    throw Error(ErrorCode::invalid_argument, fmt::format("--case must match a case of these ops (--list has their names), is '{}'{}",
                                                         pattern, nearest_text(pattern, names)));
  }
  if (selected.empty()) throw Error(ErrorCode::invalid_argument, "--op: these ops have no such cases");
  return selected;
}

void check_implementation(const std::vector<const testkit::AnyCase*>& selected, const CaseFilter& filter) {
  if (filter.implementation.empty()) return;
  const OpSet ops = default_ops();
  std::vector<std::string> known;
  for (const testkit::AnyCase* c : selected) {
    const std::vector<std::string> names = c->implementations(ops);
    if (std::find(names.begin(), names.end(), filter.implementation) != names.end()) return;
    known.insert(known.end(), names.begin(), names.end());
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("--impl must be an implementation of the chosen ops, is '{}'{}",
                                                       filter.implementation, nearest_text(filter.implementation, known)));
}

}  // namespace strata::cli
