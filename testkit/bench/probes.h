// A typical V4-Flash call of every op, shapes only: for which `strata info` lists the implementations.
#pragma once

#include <string>
#include <vector>

#include "strata/op_set.h"

namespace strata::testkit {

struct Probe {
  std::string op;
  std::vector<Candidate> candidates;
  std::string chosen;  // by Op::select, which goes by Config::force; empty: none
};
std::vector<Probe> probe_ops(const OpSet& ops, const Device& device);

}  // namespace strata::testkit
