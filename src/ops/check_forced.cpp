#include "core/check.h"
#include "strata/op_set.h"

namespace strata {

void check_forced(const OpSet& ops, const Config& config) {
  for (const auto& forced : config.force) {
    const std::string &op = forced.first, &implementation = forced.second;
    bool known_op = op == "*", known_implementation = false;
    for_each_op(ops, [&](const auto& candidate) {
      if (op != "*" && op != candidate.name()) return;
      known_op = true;
      for (const auto& impl : candidate.implementations()) known_implementation = known_implementation || impl.name == implementation;
    });
    require(known_op, "Config::force must name an op or *, names '{}'", op);
    require(known_implementation, "Config::force of {} must name one of its implementations, names '{}'", op, implementation);
  }
}

}  // namespace strata
