#include <fmt/ranges.h>

#include <set>
#include <string>

#include "core/check.h"
#include "strata/op_set.h"

namespace strata {
namespace {

// The known names, for a message about `unknown`: "; known are cpu/simd, reference".
std::string known_text(const OpSet& ops, const std::string& unknown, const std::set<std::string>& known) {
  bool has_cuda = false;
  for_each_op(ops, [&](const auto& op) {
    for (const auto& impl : op.implementations()) has_cuda = has_cuda || impl.name.starts_with("cuda/");
  });
  if (unknown.starts_with("cuda/") && !has_cuda) return "; this build has no CUDA backend";
  return fmt::format("; known are {}", fmt::join(known, ", "));
}

}  // namespace

void check_forced(const OpSet& ops, const Config& config) {
  for (const auto& forced : config.force) {
    const std::string &op = forced.first, &implementation = forced.second;
    bool known_op = op == "*";
    std::set<std::string> known;
    for_each_op(ops, [&](const auto& candidate) {
      if (op != "*" && op != candidate.name()) return;
      known_op = true;
      for (const auto& impl : candidate.implementations()) known.insert(impl.name);
    });
    require(known_op, "Config::force must name an op or *, names '{}'", op);
    require(known.contains(implementation), "Config::force of {} must name one of its implementations, names '{}'{}", op, implementation,
            known_text(ops, implementation, known));
  }
}

}  // namespace strata
